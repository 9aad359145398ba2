// A grouped GEMM behind a dispatch: experts multiply their rows, how many the device alone knows.
//
// The experts of a rank are cut into groups. A token crosses a link once, with the first group that has one of its experts:
// senders list their tokens in this order and send one group after the other. Receivers take the rows of a group out of the
// segments, those of each expert to a multiple of `moe_pad` rows, so that no tile holds rows of two experts. Other blocks
// multiply what is placed. Before a combine, products of a group go back while those of the next ones are made.
#pragma once

namespace ts {

// -- sending and placing ----------------------------------------------------------------------------------------------------

// Scales that travel with a token, behind its places: none, one, or one for every block of K.
template <class C> TS_DEV u32 sent_scales(const Call& call) {
  typedef typename ScalesOf<C>::type Kind;
  if constexpr (C::moe_pad == 1 || Kind::whole || !(Kind::ends || Kind::blocks)) return 0u;
  return Kind::blocks ? (call.args->k + kScaleBlock - 1) / kScaleBlock : 1u;
}

// Lists the tokens for every rank, group by group, and each group in the order of its tokens; behind these lists, the place
// of every entry's row: any block may send any token.
template <class C>
TS_DEV void arrange_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  for (u32 target = thread(); target < Shape::kWorld; target += C::threads) {
    u32 sum = 0;  // tokens of the groups before
    for (u32 key = Shape::kExperts + target * Shape::kGroups; key < Shape::kExperts + (target + 1u) * Shape::kGroups; ++key) {
      shared.before[key] += sum;
      sum += shared.total[key];
    }
  }
  sync();
  u32* order = (u32*)call.at(step.target, step.target_offset);
  u32* places = order + Shape::kWorld * behind[0].size;
  const Share share = share_of(step.size, me.index, me.gang);
  for (u64 entry = share.begin * Shape::kTopK + thread(); entry < share.end * Shape::kTopK; entry += C::threads) {
    const u32 expert = expert_of<C>(load(routes.indices + entry)), found = load(routes.slots + entry);
    if (expert == kNoKey) continue;
    const u32 row = shared.before[expert] + load(routes.ranks + entry);
    store(places + entry, expert % Shape::kLocal * routes.capacity + row);
    if (found == kNoKey) continue;
    const u32 slot = shared.before[Shape::kExperts + expert / Shape::kGroup] + found;
    store(order + (u64)(expert / Shape::kLocal) * behind[0].size + slot, (u32)(entry / Shape::kTopK));
  }
}

// Fills the part of a group in this rank's segment of a receiver, with the first one also what is told of all. Behind the
// routing: a row that names the order of tokens. `peer`: as of send_step.
template <class C>
TS_DEV void send_group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const Routes routes = routes_of<C>(call, behind[0]);
  const u32 target = step.value, bytes = step.first_tile, group = behind[0].value;
  const u32* lists = (const u32*)call.at(behind[1].source, behind[1].source_offset);
  const u32* order = lists + target * behind[0].size;
  const u32* places = lists + Shape::kWorld * behind[0].size;
  const u8* from = call.at(step.source, step.source_offset);
  u8* segment = call.at(step.target, step.target_offset);
  u32* head = (u32*)segment;
  const u32* tokens = shared.total + Shape::kExperts + target * Shape::kGroups;
  u32 first = 0;
  for (u32 before = 0; before < group; ++before) first += tokens[before];
  if (group == 0u && me.index == 0u) {
    for (u32 e = thread(); e < Shape::kLocal; e += C::threads) store(head + e, shared.total[target * Shape::kLocal + e]);
    if (thread() == 0) {
      u32 end = 0;
      for (u32 g = 0; g < Shape::kGroups; ++g) store(head + Shape::kLocal + g, end += tokens[g]);
    }
  }
  const u32 number = tokens[group], warp = thread() / 32u, lane = thread() % 32u, scales = sent_scales<C>(call);
  if constexpr (C::link_clock) {
    const Share even = share_of(number, me.index, me.gang);
    if (step.peer != 0u) charge_rows<C>(call, step, even.end - even.begin, bytes + scales * 4u);
  }
  if (warp < Shape::kMovers) {
    for (u32 i = me.index * Shape::kMovers + warp; i < number; i += me.gang * Shape::kMovers) {
      const u64 slot = first + i, token = load(order + slot);
      u32* words = head + Shape::kHead + slot * (Shape::kEntry + scales);
      if (lane == 0u) store(words, (u32)token);
      for (u32 i = lane; i < scales; i += 32u)
        store(words + Shape::kEntry + i, load((const u32*)call.args->base[0] + token * scales + i));
      for (u32 k = lane; k < Shape::kTopK; k += 32u) {
        const u64 entry = token * Shape::kTopK + k;
        const u32 expert = expert_of<C>(load(routes.indices + entry));
        const u32 owner = expert == kNoKey ? kNoKey : expert / Shape::kLocal;
        store(words + 1 + k, owner == target ? load(places + entry) : kNoKey);
      }
      if (step.peer != 0u) move_row<C>(from + token * bytes, segment + step.peer + slot * bytes, bytes);
    }
  }
  if constexpr (C::link_clock) sync();
}

// With the first group: how many rows and tokens there are, and where those of each expert begin.
template <class C>
TS_DEV void read_heads(const Call& call, const Step* behind, const Block& me, const MoeShared& shared) {
  typedef MoeShape<C> Shape;
  const Step* sources = behind + 2;
  u32* counts = (u32*)call.at(behind[1].target, behind[1].target_offset);
  for (u32 i = thread(); i < Shape::kExperts; i += C::threads) {
    const Step& row = sources[i / Shape::kLocal];
    const u32 found = load((const u32*)call.at(row.source, row.source_offset) + i % Shape::kLocal);
    shared.rows[i] = found;
    if (me.index == 0u) store(counts + i, found);
  }
  for (u32 i = thread(); i < Shape::kWorld * Shape::kGroups; i += C::threads) {
    const Step& row = sources[i / Shape::kGroups];
    shared.tokens[i] = load((const u32*)call.at(row.source, row.source_offset) + Shape::kLocal + i % Shape::kGroups);
  }
  begin_rows<C>(shared);
}

// Takes the rows of the experts of a group to their places: of all tokens that have come with it or before. Behind the step:
// as of place_step.
template <class C>
TS_DEV void place_group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const u32 capacity = (u32)behind[0].size * Shape::kTopK, group = behind[0].value, bytes = step.first_tile;
  u8* out = call.at(step.target, step.target_offset);
  if (group == 0u) read_heads<C>(call, behind, me, shared);
  const u32 warp = thread() / 32u, scales = sent_scales<C>(call);
  [[maybe_unused]] u32* of_rows = (u32*)call.at(behind[1].source, behind[1].source_offset);
  for (u32 turn = 0; turn < Shape::kWorld && warp < Shape::kMovers; ++turn) {
    const u32 s = (step.counter + turn) % Shape::kWorld;
    const Step& row = behind[2 + s];
    const u32* entries = (const u32*)call.at(row.source, row.source_offset) + Shape::kHead;
    const u8* tokens = call.at(row.target, row.target_offset);
    const u32 number = shared.tokens[s * Shape::kGroups + group];
    for (u64 slot = me.index * Shape::kMovers + warp; slot < number; slot += me.gang * Shape::kMovers) {
      const u32* words = entries + slot * (Shape::kEntry + scales);
      u32 places[Shape::kTopK];
      u32 found = 0;
#pragma unroll
      for (u32 k = 0; k < Shape::kTopK; ++k) {
        const u32 place = load(words + 1 + k);
        const u32 expert = place == kNoKey ? kNoKey : place / capacity;
        places[k] = kNoKey;
        if (expert / Shape::kGroup == group) {
          places[k] = shared.first[s * Shape::kLocal + expert] + place % capacity;
          ++found;
        }
      }
      if (found == 0u) continue;
      const u64 from = row.per_call != 0u ? load(words) : slot;
      place_row<C>(tokens + from * bytes, out, places, bytes);
      for (u32 i = thread() % 32u; i < scales; i += 32u) {
        const u32 scale = load(words + Shape::kEntry + i);
#pragma unroll
        for (u32 k = 0; k < Shape::kTopK; ++k)
          if (places[k] != kNoKey) store(of_rows + (u64)places[k] * scales + i, scale);
      }
    }
  }
}

template <class C> TS_DEV void group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  if (step.per_call == kArrange) {
    arrange_step<C>(call, step, behind, me, smem);
  } else if (step.per_call == kSendGroup) {
    send_group_step<C>(call, step, behind, me, smem);
  } else if (step.per_call == kPlaceGroup) {
    place_group_step<C>(call, step, behind, me, smem);
  }
}

// The way back. Gives a source its products of the experts of a group: in its segment behind those of the groups before, by
// expert as return_step does.
template <class C>
TS_DEV void return_group_step(const Call& call, const Step& step, const Step* behind, const Block& me, u8* smem) {
  typedef MoeShape<C> Shape;
  const MoeShared shared = moe_shared<C>(smem);
  const u32 source = step.value, bytes = step.first_tile, group = behind[0].value;
  const u32 capacity = (u32)behind[0].size * Shape::kTopK;
  const u32* begins = shared.first + source * Shape::kLocal;
  const u32* rows = shared.rows + source * Shape::kLocal;
  const u8* from = call.at(step.source, step.source_offset);
  u8* segment = call.at(step.target, step.target_offset);
  u32 first = 0, behind_last = 0;  // of the group, in the segment
#pragma unroll 4
  for (u32 e = 0; e < (group + 1u) * Shape::kGroup; ++e) {
    if (e < group * Shape::kGroup) first += rows[e];
    behind_last += rows[e];
  }
  behind_last = behind_last < capacity ? behind_last : capacity;
  const u32 number = first < behind_last ? behind_last - first : 0u, warp = thread() / 32u;
  const Share even = share_of(number, me.index, me.gang);
  charge_rows<C>(call, step, even.end - even.begin, bytes);
  if (warp < Shape::kMovers) {
    u32 expert = group * Shape::kGroup, passed = 0;  // rows of the experts before
    for (u32 i = me.index * Shape::kMovers + warp; i < number; i += me.gang * Shape::kMovers) {
      while (i - passed >= rows[expert]) passed += rows[expert++];
      const u64 row = begins[expert] + (i - passed), slot = first + i;
      if (row < step.size) move_row<C>(from + row * bytes, segment + slot * bytes, bytes);
    }
  }
  if constexpr (C::link_clock) sync();
}

// -- products ---------------------------------------------------------------------------------------------------------------

// What a block knows of the rows of its rank's experts, in shared memory behind the barriers of the pipeline: `told[g]` is
// complete once the rows of group g are known. By expert: how many there are, and where they begin in what is multiplied and
// in the output.
template <class C> struct GroupTable {
  u64* told;
  u32 *rows, *from, *to;

  TS_DEV explicit GroupTable(u8* smem) {
    told = (u64*)(smem + GemmLayout<C>::barrier_offset) + 2 * C::num_stages;
    rows = (u32*)(told + MoeShape<C>::kGroups);
    from = rows + MoeShape<C>::kLocal;
    to = from + MoeShape<C>::kLocal;
  }
};

// Rows of all experts before a group: where they end, and how many tiles they make.
struct GroupsBefore { u32 from = 0, to = 0, tiles = 0; };

// The lanes of one warp tell the block of the rows of a group. Whatever the counts say, no more than `size` rows are taken;
// once a wait has failed there are none.
template <class C>
TS_DEV void tell_group(const Call& call, const Step& step, u32 group, const GroupTable<C>& table, GroupsBefore& before) {
  typedef MoeShape<C> Shape;
  const u32* counts = (const u32*)call.at(step.source, step.source_offset);
  const u32 lane = thread() % 32u, first = group * Shape::kGroup;
  for (u32 e = first + lane; e < first + Shape::kGroup; e += 32u) {
    u32 sum = 0;
#pragma unroll 4
    for (u32 source = 0; source < Shape::kWorld; ++source) sum += load(counts + source * Shape::kLocal + e);
    table.rows[e] = sum;
  }
  warp_sync();
  if (lane == 0u) {
    const u32 failed = load_relaxed(&call.args->state->failed);
    for (u32 e = first; e < first + Shape::kGroup; ++e) {
      const u32 left = (u32)step.size - before.to;
      const u32 rows = failed != 0u ? 0u : table.rows[e] < left ? table.rows[e] : left;
      table.rows[e] = rows;
      table.from[e] = before.from;
      table.to[e] = before.to;
      before.from += (rows + Groups<C>::pad - 1u) / Groups<C>::pad * Groups<C>::pad;
      before.to += rows;
    }
    mb_arrive(&table.told[group]);
  }
}

// Calls `body(expert, position)` for the tiles of a group that are this block's: dealt round robin over the gang, counted on
// from the groups before.
template <class C, class Body>
TS_DEV void for_group_tiles(const Call& call, const GroupTable<C>& table, u32 group, const Block& me, GroupsBefore& before,
                            Body body) {
  typedef MoeShape<C> Shape;
  const u32 tiles_n = (call.args->n + C::block_n - 1) / C::block_n;
  for (u32 e = group * Shape::kGroup; e < (group + 1u) * Shape::kGroup; ++e) {
    const u32 tiles_m = (table.rows[e] + C::block_m - 1) / C::block_m;
    for (u32 t = (me.index + me.gang - before.tiles % me.gang) % me.gang; t < tiles_m * tiles_n; t += me.gang)
      body(e, tile_position<C>(t, tiles_m, tiles_n));
    before.tiles += tiles_m * tiles_n;
  }
}

template <class C>
TS_DEV void load_group_stage(const Maps& maps, u8* stage, u64* full, u32 k, u32 row, u32 expert, u32 column) {
  mb_expect(full, GemmLayout<C>::stage_bytes);
#pragma unroll
  for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
    tma_load_3d(stage + s * C::block_m * 128, &maps.a[0], full, (int)(k + s * Operands<C>::wide), (int)row, 0);
  u8* b = stage + GemmLayout<C>::a_bytes;
  if constexpr (C::b_row_major) {
#pragma unroll
    for (int s = 0; s < GemmLayout<C>::b_columns / 64; ++s)
      tma_load_3d(b + s * C::block_k * 128, &maps.b, full, (int)(column + s * 64), (int)k, (int)expert);
  } else {
#pragma unroll
    for (int s = 0; s < C::block_k / Operands<C>::wide; ++s)
      tma_load_3d(b + s * C::block_n * 128, &maps.b, full, (int)(k + s * Operands<C>::wide), (int)column, (int)expert);
  }
}

// One warp, which waits for groups and counts their rows; its first lane loads tiles.
template <class C>
TS_DEV void grouped_producer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  Ring<C::num_stages> ring;
  const GroupTable<C> table(smem);
  GroupsBefore before;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step* behind = call.args->steps + me.first_step + i + 1;
    const Step step = behind[-1];
    if (step.kind == kSignal) continue;
    step_begin(step.id);
    if (step.kind == kWait) {
      wait_step(call, step);
      fence_async_global();  // what the acquire has made visible is read by the asynchronous proxy next
    } else {
      const u32 group = behind[0].value;
      tell_group<C>(call, step, group, table, before);
      if (thread() == 0) {
        for_group_tiles<C>(call, table, group, me, before, [&](u32 expert, TilePosition tile) {
          const u32 row = tile.m * C::block_m + table.from[expert];
          for (u32 k = 0; k < (call.args->k + C::block_k - 1) / C::block_k; ++k) {
            barrier_wait(call, step, &empty[ring.stage], ring.parity ^ 1u);
            load_group_stage<C>(maps, smem + ring.stage * GemmLayout<C>::stage_bytes, &full[ring.stage], k * C::block_k, row,
                                expert, tile.n * C::block_n);
            ring.next();
          }
        });
      }
      warp_sync();  // lanes that polled for the next group would take turns with the one that loads
      i += step.rows;
    }
    step_end();
  }
}

template <class C>
TS_DEV void grouped_consumer(const Call& call, const Maps& maps, const Block& me, u8* smem, u64* full, u64* empty) {
  constexpr int kSubtiles = GemmLayout<C>::subtiles;
  constexpr u32 kMultiply = GemmLayout<C>::consumers * 128;  // threads
  const u32 warpgroup = thread() / 128 - 1;
  Ring<C::num_stages> ring;
  typedef typename StoredAs<C>::type Stored;
  Staging<Stored> staging{smem + GemmLayout<C>::staging_offset + (thread() / 32 - 4) * Staging<C>::warp_bytes};
  const GroupTable<C> table(smem);
  const KRange range{0, (call.args->k + C::block_k - 1) / C::block_k};
  const u32 n = call.args->n;
  GroupsBefore before;
  bool signalled = false;
  for (u32 i = 0; i < me.num_steps; ++i) {
    const Step* behind = call.args->steps + me.first_step + i + 1;
    const Step step = behind[-1];
    if (step.kind == kWait) continue;
    step_begin(step.id);
    if (step.kind == kSignal) {
      if (!signalled) named_barrier(kConsumersMeet, kMultiply);
      if (thread() % kMultiply == 0) signal_step(call, step, !signalled);
      signalled = true;
      step_end();
      continue;
    }
    signalled = false;
    const u32 group = behind[0].value;
    barrier_wait(call, step, &table.told[group], 0u);
    for_group_tiles<C>(call, table, group, me, before, [&](u32 expert, TilePosition tile) {
      float acc[kSubtiles][C::block_n / 2];
      if constexpr (Operands<C>::promotes) {
        const u8* of_rows = (const u8*)call.args->base[0];
        if (sent_scales<C>(call) != 0u) of_rows = call.at(behind[1].source, behind[1].source_offset);
        const Scaling<C> scaling(call, table.from[expert], table.rows[expert], expert, (const float*)of_rows);
        multiply_tile_promoted<C>(call, step, acc, ring, smem, full, empty, range, scaling, tile);
        if constexpr (ScalesOf<C>::type::ends) {
#pragma unroll
          for (int s = 0; s < kSubtiles; ++s)
            scale_rows<C>(scaling, tile.m * C::block_m + (warpgroup * kSubtiles + s) * 64, tile.n * C::block_n, acc[s]);
        }
      } else {
        multiply_tile<C>(call, step, acc, ring, smem, full, empty, range);
      }
      const u32 columns = stored_columns<C>(n);
      u8* out = call.at(step.target, step.target_offset) + (u64)table.to[expert] * columns * BytesOf<typename C::Out>::value;
      const OutRows rows{out, table.rows[expert], columns, 0u, 0u};
      // No epilogue of experts reads a tensor of the shape of the output, so it does not matter where their rows lie in one.
      const Results results{&call, 0u, n, (u64)expert * n};
#pragma unroll
      for (int s = 0; s < kSubtiles; ++s) {
        const u32 row = tile.m * C::block_m + (warpgroup * kSubtiles + s) * 64;
        if constexpr (EpilogueOf<C>::any) finish_tile<C>(results, row, rows.rows, tile.n * C::block_n, acc[s]);
        if constexpr (EpilogueOf<C>::halves) {
          float halved[C::block_n / 4];
          halve_tile<C>(acc[s], halved);
          store_rows<Stored>(halved, staging, &maps.out, rows, row, tile.n * Stored::block_n);
        } else {
          store_rows<Stored>(acc[s], staging, &maps.out, rows, row, tile.n * C::block_n);
        }
      }
    });
    i += step.rows;
    step_end();
  }
}

// A product is stored as a part of what a text makes of it: where products go back, these are summed, and rounded then.
template <class C> struct Products : C { typedef typename C::Part Out; };

// Registers move from the loading to the multiplying warpgroups, as in gemm_role.
template <class C> TS_DEV void grouped_role(const Call& call, const Maps& maps, const Block& me, u8* smem) {
  constexpr int kConsumers = GemmLayout<C>::consumers;
  u64* full = (u64*)(smem + GemmLayout<C>::barrier_offset);
  u64* empty = full + C::num_stages;
  if (thread() == 0) {
    prefetch_map(&maps.a[0]);
    prefetch_map(&maps.b);
    for (int i = 0; i < C::num_stages; ++i) {
      mb_init(&full[i], 1);
      mb_init(&empty[i], kConsumers * 4);
    }
    const GroupTable<C> table(smem);
    for (u32 group = 0; group < MoeShape<C>::kGroups; ++group) mb_init(&table.told[group], 1);
    mb_fence_init();
  }
  sync();
  if (thread() < 128) {
    if constexpr (kConsumers == 2) reg_dec<40>();
    if (thread() < 32) {
      grouped_producer<C>(call, maps, me, smem, full, empty);
      if (thread() == 0) finish(call, call.args->last);
    }
  } else {
    if constexpr (kConsumers == 2) reg_inc<232>();
    grouped_consumer<C>(call, maps, me, smem, full, empty);
  }
}

}  // namespace ts
