// The values that host and device share: step tables, block tables, kernel arguments, failure records.
// tilescale/codegen/table.py packs the same layouts; a test compares sizes and offsets.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace ts {

// What the L2 does with bytes that a tensor map loads, as `createpolicy` encodes it.
constexpr u64 kKeepAsUsual = 0;
constexpr u64 kKeepShort = 0x12F0000000000000;  // evict_first: of what is loaded once
constexpr u64 kKeepLong = 0x14F0000000000000;   // evict_last: of what is loaded again and again

// kReserve and kPace stand around a copy by a copy engine in the scale model, kSource rows behind a sum, one a source,
// kLoop rows behind a copy of rows at pitches, one a loop; no plan holds them. kMultiStore and kMultiSum go through a
// multicast address, which stands for the same bytes of all ranks. kPackets is all that a launch of packets does.
enum StepKind : u32 {
  kCopy = 1, kSignal = 2, kWait = 3, kGemm = 4, kReserve = 5, kPace = 6, kSum = 7, kSource = 8, kLoop = 9, kRagged = 10,
  kMultiStore = 11, kMultiSum = 12, kPackets = 13
};

// What a sum takes and becomes: all parts at once; or, where it goes from rank to rank, a part that begins it, the sum so far
// and a part, or these for its owner.
enum SumForm : u32 { kSumParts = 0, kSumBegun = 1, kSumAdded = 2, kSumCompleted = 3 };
// What a ragged step does (see moe.cuh). Its fields: source, target: pointer slots; counter, value: ranks that send and
// receive; per_call: the task; rows: rows behind it; size: tokens, or rows, of this rank; first_tile: bytes of a row;
// peer: bytes of a segment before its tokens or rows, 0 where these do not go through it. The first row behind it names
// the indices (source), the numbers of the entries (target), and the tokens of the largest shard (size).
// Where experts multiply their rows, that row holds the group (value).
enum RaggedTask : u32 {
  kRoute = 1, kTotal = 2, kSend = 3, kPlace = 4, kTally = 5, kReturn = 6, kWeigh = 7, kArrange = 8, kSendGroup = 9,
  kPlaceGroup = 10, kProducts = 11, kReturnGroup = 12
};

// One row of a step table (64 bytes).
struct Step {
  u32 kind;
  u32 id;          // number of the step in the plan of this rank
  u32 source;      // copy, source: pointer slot read; signal: rank signalled; gemm: first tensor map of A, or of what is sent;
                   // sum: pointer slot of what its epilogue hands out besides, from target_offset on
  u32 target;      // copy, sum: pointer slot written; gemm: pointer slot of the output; reserve, pace: number of the lane
  u32 counter;     // signal, wait: the counter. copy, source, reserve, sum on its way: rank that sends. gemm: shard of the
                   // output in its map
  u32 value;       // signal: added by each block; wait: growth wanted in this call. copy, source, reserve, sum on its way:
                   // rank that receives. gemm: versions of A (1 or 2), above 8 bits the steps that are walked as one
                   // (gemm_owners.cuh). loop: its count
  u32 per_call;    // wait: growth of the counter in one call. gemm: first row in the shard of the output
  u32 rows;        // gemm: rows of the segment; sum: rows behind it, its sources; copy: rows behind it, its loops
  u64 source_offset;  // copy, source: bytes into the slot; gemm: first row of A inside its shard; loop: pitch of the source;
                      // sum: its first element in tensors of the shape of the output
  u64 target_offset;  // copy, sum: bytes into the slot; gemm: bytes into the output; loop: pitch of the target
  u64 size;        // copy, sum, reserve: bytes (of a part); gemm: index of the shard in A's tensor map; loop: of a row
  u32 first_tile;  // gemm: number of tiles in the segments before this one; where tiles are shared along the contraction
                   // (gemm_stream.cuh), pointer slot of the sums that blocks leave for each other
  u32 peer;        // gemm: rank that holds the output; sum: SumForm
  // Packets (packets.cuh): id: of the first step; the others follow it. source, target: pointer slots of the operand and of
  // the output; counter, per_call: those of the parts and of the sums at rank 0, those at other ranks behind them; size:
  // bytes that go from one rank to another; rows: packets of these that a block takes.
  // A gemm of warps (gemm_mma.cuh): source and size are the pointer slots of A and B, source_offset bytes into A.
  // A gemm that is a segment of a contraction (contract.cuh): counter is its shard in the map of what is sent, size that in the
  // map of the local operand, source_offset its first index in the shard, per_call how many there are, rows those of the
  // output, peer 1 in the first segment of a product, 2 in the last, 3 in an only one.
  // A panel of block matrices that arrives in slots: counter and size are its places among the slots, or in the own block of
  // A where source has 1, of B where it has 2. Where sums wait in memory, peer is 2, and 4 where they are read, and 8 where
  // they are left, in the pointer slot value.
};

// What one block of a launch does.
enum RoleKind : u32 { kCopyRole = 1, kGemmRole = 2 };
struct Block {
  u32 role;        // RoleKind
  u32 first_step;  // into the step table of the launch
  u32 num_steps;
  u32 index;       // number of this block in its gang
  u32 gang;        // blocks of the gang
  u32 reserved[3];
};

// Lives in device memory of the rank, made once a workspace. The host reads `failed` after a call.
struct State {
  u32 calls;       // calls that have completed: the epoch
  u32 exits;       // blocks of the last launch that have finished
  u32 failed;      // 1 once a wait ran out of time; every later wait returns at once
  u32 failed_rank, failed_step, failed_counter, wanted, found;
};

// The scale model's clocks, in the same page as the state, before the counters: until when the links of a rank are taken,
// and until when the copies of its host-driven lanes are.
constexpr u32 kMaxLanes = 8;
struct Links {
  u64 egress, ingress;
  u64 lanes[kMaxLanes];
};
constexpr u32 kLinksBeforeCounters = 128;

constexpr u32 kMaxLoops = 4;  // of a copy
constexpr u32 kMaxSlots = 96;
constexpr u32 kMaxRanks = 72;

// Kernel argument, by value.
struct Arguments {
  u64 base[kMaxSlots];      // address of each pointer slot
  u64 stride[kMaxSlots];    // bytes added to it in odd calls (buffers of two versions), else 0
  u64 counters[kMaxRanks];  // counters of each rank
  State* state;
  const Step* steps;
  const Block* blocks;
  u64 time_limit_ns;        // of one wait
  u32 rank;
  u32 last;                 // 1: the last launch of a call, it advances the epoch
  u32 n, k;                 // gemm: columns of B; contraction. sum with an epilogue: columns of the output
  u64 link_fs_per_byte;     // scale model: femtoseconds that a byte takes a link
  union {                   // what a block would have to look up first, and wait for:
    Step only;              // the row of a launch that has one, for all of its blocks alike
    Block roles[2];         // of other launches, the rows of their gangs, where these are at most two; else zeros
  };
};

}  // namespace ts
