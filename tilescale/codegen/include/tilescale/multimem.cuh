// Steps through multicast addresses: one store reaches every rank, one load is the sum over all ranks. The switch between
// the GPUs does it.
//
// A multicast address and the plain ones name the same bytes. Between accesses through one and through the other stands a
// proxy fence: behind every acquire of a kernel that belongs to such a schedule, and around the steps here. What these steps
// touch beside, the caller's operand and output, has no multicast address.
#pragma once

namespace ts {

// Texts of kernels that use no multicast have no constant `multimem`, so they stay what they were.
template <class C, class = void> struct Multicast { static constexpr bool value = false; };
template <class C> struct Multicast<C, typename Void<C::multimem>::type> { static constexpr bool value = C::multimem; };

constexpr int kMultiUnroll = 4;  // accesses in flight a thread

// A unit of the sum as the output holds it: as it is, or four numbers of fp32 rounded once.
template <class C> TS_DEV void write_sum(u8* to, u64 unit, U128 sum) {
  if constexpr (Same<typename C::Part, typename C::Out>::value) {
    store_private((U128*)to + unit, sum);
  } else {
    const float* values = (const float*)&sum;
    const u64 low = pack2<typename C::Out>(values[0], values[1]), high = pack2<typename C::Out>(values[2], values[3]);
    store_private((u64*)to + unit, low | (high << 32));
  }
}

// All threads of the block: each unit of the target is the sum of that unit over all ranks.
template <class C> TS_DEV void multi_sum(const Call& call, const Step& step, const Block& me) {
  constexpr u32 kStride = CopyThreads<C>::value;
  const U128* from = (const U128*)call.at(step.source, step.source_offset);
  u8* to = call.at(step.target, step.target_offset);
  const Share share = share_of(step.size / 16, me.index, me.gang);
  fence_alias();
  if (thread() < kStride) {
    u64 i = share.begin + thread();
    for (; i + (kMultiUnroll - 1) * (u64)kStride < share.end; i += kMultiUnroll * (u64)kStride) {
      U128 held[kMultiUnroll];
#pragma unroll
      for (int u = 0; u < kMultiUnroll; ++u) held[u] = multimem_load_add<typename C::Part>(from + i + u * kStride);
#pragma unroll
      for (int u = 0; u < kMultiUnroll; ++u) write_sum<C>(to, i + u * kStride, held[u]);
    }
    for (; i < share.end; i += kStride) write_sum<C>(to, i, multimem_load_add<typename C::Part>(from + i));
  }
  fence_alias();
}

// All threads of the block: every unit goes to all ranks.
template <class C> TS_DEV void multi_store(const Call& call, const Step& step, const Block& me) {
  constexpr u32 kStride = CopyThreads<C>::value;
  const U128* from = (const U128*)call.at(step.source, step.source_offset);
  U128* to = (U128*)call.at(step.target, step.target_offset);
  const Share share = share_of(step.size / 16, me.index, me.gang);
  fence_alias();
  if (thread() < kStride) {
    u64 i = share.begin + thread();
    for (; i + (kMultiUnroll - 1) * (u64)kStride < share.end; i += kMultiUnroll * (u64)kStride) {
      U128 held[kMultiUnroll];
#pragma unroll
      for (int u = 0; u < kMultiUnroll; ++u) held[u] = load_private(from + i + u * kStride);
#pragma unroll
      for (int u = 0; u < kMultiUnroll; ++u) multimem_store<Fp32>(to + i + u * kStride, held[u]);
    }
    for (; i < share.end; i += kStride) multimem_store<Fp32>(to + i, load_private(from + i));
  }
  fence_alias();
}

}  // namespace ts
