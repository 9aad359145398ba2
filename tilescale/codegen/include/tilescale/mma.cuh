// Tensor core instructions of sm_90a: wgmma on shared-memory operands, fp32 accumulation.
// The asm statements list every accumulator register, since PTX has no arrays; only their length differs.
#pragma once
#include "ptx.cuh"

namespace ts {

// A shared-memory matrix descriptor. Fields (PTX ISA, "matrix descriptor format"): address >> 4 in bits 0-13, leading
// byte offset >> 4 in bits 16-29, stride byte offset >> 4 in bits 32-45, layout 1 (128-byte swizzle) in bits 62-63.
typedef u64 Descriptor;
TS_DEV Descriptor descriptor(const void* smem, u32 leading, u32 stride) {
  return ((u64)(shared_address(smem) & 0x3FFFF) >> 4) | ((u64)(leading >> 4) << 16) | ((u64)(stride >> 4) << 32) | (1ull << 62);
}
// Rows of 128 bytes along K, atoms of 8 rows 1024 bytes apart. K advances 32 bytes an instruction.
TS_DEV Descriptor desc_k_major(const void* smem) { return descriptor(smem, 16, 1024); }
// Slabs of 64 columns: every k is a row of 128 bytes, atoms of 8 k 1024 bytes apart, slabs `slab_bytes` apart. K advances
// 2048 bytes an instruction.
TS_DEV Descriptor desc_mn_major(const void* smem, u32 slab_bytes) { return descriptor(smem, slab_bytes, 1024); }
TS_DEV Descriptor advance(Descriptor d, u32 bytes) { return d + (bytes >> 4); }

TS_DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TS_DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> TS_DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

// One statement a width. The registers are listed in steps of 8, for widths in steps of 16.
template <int N, bool kTransposeB, class T> struct Wgmma;

#define TS_REGISTERS_4 "%0,%1,%2,%3"
#define TS_OUTPUTS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TS_REGISTERS_8 TS_REGISTERS_4 "," "%4,%5,%6,%7"
#define TS_OUTPUTS_8 TS_OUTPUTS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define TS_REGISTERS_16 TS_REGISTERS_8 "," "%8,%9,%10,%11,%12,%13,%14,%15"
#define TS_OUTPUTS_16 TS_OUTPUTS_8, \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define TS_REGISTERS_24 TS_REGISTERS_16 "," "%16,%17,%18,%19,%20,%21,%22,%23"
#define TS_OUTPUTS_24 TS_OUTPUTS_16, \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define TS_REGISTERS_32 TS_REGISTERS_24 "," "%24,%25,%26,%27,%28,%29,%30,%31"
#define TS_OUTPUTS_32 TS_OUTPUTS_24, \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define TS_REGISTERS_40 TS_REGISTERS_32 "," "%32,%33,%34,%35,%36,%37,%38,%39"
#define TS_OUTPUTS_40 TS_OUTPUTS_32, \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define TS_REGISTERS_48 TS_REGISTERS_40 "," "%40,%41,%42,%43,%44,%45,%46,%47"
#define TS_OUTPUTS_48 TS_OUTPUTS_40, \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define TS_REGISTERS_56 TS_REGISTERS_48 "," "%48,%49,%50,%51,%52,%53,%54,%55"
#define TS_OUTPUTS_56 TS_OUTPUTS_48, \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define TS_REGISTERS_64 TS_REGISTERS_56 "," "%56,%57,%58,%59,%60,%61,%62,%63"
#define TS_OUTPUTS_64 TS_OUTPUTS_56, \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define TS_REGISTERS_72 TS_REGISTERS_64 "," "%64,%65,%66,%67,%68,%69,%70,%71"
#define TS_OUTPUTS_72 TS_OUTPUTS_64, \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define TS_REGISTERS_80 TS_REGISTERS_72 "," "%72,%73,%74,%75,%76,%77,%78,%79"
#define TS_OUTPUTS_80 TS_OUTPUTS_72, \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define TS_REGISTERS_88 TS_REGISTERS_80 "," "%80,%81,%82,%83,%84,%85,%86,%87"
#define TS_OUTPUTS_88 TS_OUTPUTS_80, \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define TS_REGISTERS_96 TS_REGISTERS_88 "," "%88,%89,%90,%91,%92,%93,%94,%95"
#define TS_OUTPUTS_96 TS_OUTPUTS_88, \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define TS_REGISTERS_104 TS_REGISTERS_96 "," "%96,%97,%98,%99,%100,%101,%102,%103"
#define TS_OUTPUTS_104 TS_OUTPUTS_96, \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define TS_REGISTERS_112 TS_REGISTERS_104 "," "%104,%105,%106,%107,%108,%109,%110,%111"
#define TS_OUTPUTS_112 TS_OUTPUTS_104, \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define TS_REGISTERS_120 TS_REGISTERS_112 "," "%112,%113,%114,%115,%116,%117,%118,%119"
#define TS_OUTPUTS_120 TS_OUTPUTS_112, \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define TS_REGISTERS_128 TS_REGISTERS_120 "," "%120,%121,%122,%123,%124,%125,%126,%127"
#define TS_OUTPUTS_128 TS_OUTPUTS_120, \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define TS_WGMMA_OF(N, TYPE, REGISTERS, OUTPUTS, A, B, ADD, TURN, TRANSPOSE) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" ADD ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, %" A ", %" B \
               ", add, 1, 1, " TURN ", %" TRANSPOSE ";\n}" \
               : OUTPUTS : "l"(a), "l"(b), "r"(add), "n"(kTransposeB) : "memory")
// One byte an element: 32 of K an instruction, and both operands K-major.
#define TS_WGMMA_BYTES(N, TYPE, REGISTERS, OUTPUTS, A, B, ADD) \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" ADD ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TYPE "." TYPE " {" REGISTERS "}, %" A ", %" B \
               ", add, 1, 1;\n}" \
               : OUTPUTS : "l"(a), "l"(b), "r"(add) : "memory")
#define TS_WGMMA(N, COUNT, A, B, ADD, TRANSPOSE) \
  template <bool kTransposeB, class T> struct Wgmma<N, kTransposeB, T> { \
    static TS_DEV void run(float (&d)[COUNT], Descriptor a, Descriptor b, u32 add) { \
      if constexpr (Same<T, Bf16>::value) { \
        TS_WGMMA_OF(N, "bf16", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD, "0", TRANSPOSE); \
      } else if constexpr (Same<T, E4m3>::value) { \
        TS_WGMMA_BYTES(N, "e4m3", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD); \
      } else if constexpr (Same<T, E5m2>::value) { \
        TS_WGMMA_BYTES(N, "e5m2", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD); \
      } else { \
        TS_WGMMA_OF(N, "f16", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD, "0", TRANSPOSE); \
      } \
    } \
    static TS_DEV void run_turned(float (&d)[COUNT], Descriptor a, Descriptor b, u32 add) { \
      if constexpr (Same<T, Bf16>::value) { \
        TS_WGMMA_OF(N, "bf16", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD, "1", TRANSPOSE); \
      } else { \
        TS_WGMMA_OF(N, "f16", TS_REGISTERS_##COUNT, TS_OUTPUTS_##COUNT, A, B, ADD, "1", TRANSPOSE); \
      } \
    } \
  };
TS_WGMMA(8, 4, "4", "5", "6", "7")
TS_WGMMA(16, 8, "8", "9", "10", "11")
TS_WGMMA(32, 16, "16", "17", "18", "19")
TS_WGMMA(48, 24, "24", "25", "26", "27")
TS_WGMMA(64, 32, "32", "33", "34", "35")
TS_WGMMA(80, 40, "40", "41", "42", "43")
TS_WGMMA(96, 48, "48", "49", "50", "51")
TS_WGMMA(112, 56, "56", "57", "58", "59")
TS_WGMMA(128, 64, "64", "65", "66", "67")
TS_WGMMA(144, 72, "72", "73", "74", "75")
TS_WGMMA(160, 80, "80", "81", "82", "83")
TS_WGMMA(176, 88, "88", "89", "90", "91")
TS_WGMMA(192, 96, "96", "97", "98", "99")
TS_WGMMA(208, 104, "104", "105", "106", "107")
TS_WGMMA(224, 112, "112", "113", "114", "115")
TS_WGMMA(240, 120, "120", "121", "122", "123")
TS_WGMMA(256, 128, "128", "129", "130", "131")

// d = A (64 x 16, K-major) times B (16 x N; K-major, or MN-major with kTransposeB), added to d where `add` is not 0. Of
// one-byte elements K is 32 instead of 16, and B is K-major.
template <int N, bool kTransposeB, class T> TS_DEV void wgmma(float (&d)[N / 2], Descriptor a, Descriptor b, u32 add) {
  static_assert(!kTransposeB || Same<T, Bf16>::value || Same<T, Fp16>::value, "operands of one byte are K-major");
  Wgmma<N, kTransposeB, T>::run(d, a, b, add);
}
// The same with A MN-major: every k a row of 64 elements.
template <int N, bool kTransposeB, class T> TS_DEV void wgmma_turned(float (&d)[N / 2], Descriptor a, Descriptor b, u32 add) {
  Wgmma<N, kTransposeB, T>::run_turned(d, a, b, add);
}

// Four 8 x 8 matrices of 16-bit elements from shared memory, by a warp, `kCount` times: lane l gives the address of row l % 8
// of matrix l / 8, 16 bytes. Register i of a lane holds two elements of matrix i: columns lane % 4 * 2 (and one more) of row
// lane / 4; turned: rows lane % 4 * 2 (and one more) of column lane / 4.
template <int kCount> TS_DEV void load_matrices(u32 (&r)[kCount][4], const u8* const (&rows)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[i][0]), "=r"(r[i][1]), "=r"(r[i][2]), "=r"(r[i][3]) : "r"(shared_address(rows[i])) : "memory");
}
template <int kCount> TS_DEV void load_matrices_turned(u32 (&r)[kCount][4], const u8* const (&rows)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[i][0]), "=r"(r[i][1]), "=r"(r[i][2]), "=r"(r[i][3]) : "r"(shared_address(rows[i])) : "memory");
}

// d (16 x 8) += a (16 x 16, row-major) b (16 x 8, column-major), by a warp, on any architecture from sm_80. With
// g = lane / 4 and c = lane % 4 * 2: a holds rows g, g + 8, g, g + 8 and columns c, c, c + 8, c + 8 (and one more each);
// b rows c, c + 8 (and one more) of column g; d rows g, g, g + 8, g + 8 and columns c, c + 1, c, c + 1.
template <class T> TS_DEV void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (Same<T, Bf16>::value) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// The same for kRows times kColumns of them: rows of 16, and pairs of columns of 8, whose b are two registers each.
template <class T, int kRows, int kColumns>
TS_DEV void mma_tile(float (&d)[kRows][kColumns * 4], const u32 (&a)[kRows][4], const u32 (&b)[kColumns / 2][4]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      float sums[4] = {d[i][4 * j], d[i][4 * j + 1], d[i][4 * j + 2], d[i][4 * j + 3]};
      const u32 column[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
      mma_m16n8k16<T>(sums, a[i], column);
#pragma unroll
      for (int e = 0; e < 4; ++e) d[i][4 * j + e] = sums[e];
    }
  }
}

}  // namespace ts
