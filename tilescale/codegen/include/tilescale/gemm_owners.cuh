// A product whose rows several ranks own, each of them stored at its owner: steps of several owners follow each other, and are
// walked as one. Their tiles lie one above the other, so that a column of tiles of B is read once for all of them. Where an
// owner has no more rows than a warpgroup multiplies, each warpgroup of a tile takes those of another one (`owners`).
#pragma once

namespace ts {

// Texts of other kernels do not name `together`.
template <class C, class = void> struct Together {
  static constexpr bool value = false;
  static constexpr u32 owners = 1;
};
template <class C> struct Together<C, typename Void<C::together>::type> {
  static constexpr bool value = C::together;
  static constexpr u32 owners = C::owners;
};

// Steps that are walked as one, of which `step` is the first; versions of A.
template <class C> TS_DEV u32 steps_together(const Step& step) { return Together<C>::value ? step.value >> 8 : 1u; }
template <class C> TS_DEV u32 versions_of_a(const Step& step) { return Together<C>::value ? step.value & 255u : step.value; }

// The step that rows of a tile belong to, and the tile's place among those of the step.
struct OwnRows {
  Step step;
  u32 m;
};

// Of part `part` of the tile that is number `m` of all; `step`: the first of the steps, row `i` of the table.
template <class C> TS_DEV OwnRows rows_of_owner(const Call& call, const Block& me, u32 i, const Step& step, u32 m, u32 part) {
  if constexpr (!Together<C>::value) {
    return {step, m};
  } else {
    constexpr u32 kOwners = Together<C>::owners;
    const u32 tiles = (step.rows + C::block_m - 1) / C::block_m;
    const OwnRows found{step_of<C>(call, me, i + (kOwners > 1 ? m * kOwners + part : m / tiles)), m % tiles};
    step_begin(found.step.id);
    return found;
  }
}

// Rows of tiles of the steps. Those that blocks of a cluster take together count as one.
template <class C> TS_DEV u32 tile_rows(const Step& step) {
  constexpr u32 kRows = C::block_m * C::cluster_m;
  return (step.rows + kRows - 1) / kRows * (steps_together<C>(step) / Together<C>::owners);
}

}  // namespace ts
