// Two warpgroups that multiply take turns at the tiles of a block ("ping-pong"): while one stores its tile, the other's products
// run. Stages are filled tile by tile, so each takes the stages of its own tiles and passes over the others.
#pragma once

namespace ts {

// Texts of kernels whose warpgroups share every tile do not name `pingpong`, so they stay what they were.
template <class C, class = void> struct Pingpong { static constexpr bool value = false; };
template <class C> struct Pingpong<C, typename Void<C::pingpong>::type> { static constexpr bool value = C::pingpong; };

constexpr u32 kTurn = 2;  // named barriers: the turn of the first warpgroup, of the second

// The products of one warpgroup begin when those of the other have been issued, so that they do not slow each other down.
TS_DEV void take_turn(u32 warpgroup) { named_barrier(kTurn + warpgroup, 256u); }
TS_DEV void pass_turn(u32 warpgroup) { named_arrive(kTurn + (warpgroup ^ 1u), 256u); }

}  // namespace ts
