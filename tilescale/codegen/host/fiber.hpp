// Fibers: stacks and the switch between them. On x86-64 a switch saves the six callee-saved registers (16 ns); elsewhere
// ucontext does it (slower, since it saves the signal mask).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/mman.h>
#if defined(__x86_64__) && !defined(TS_UCONTEXT)
#define TS_OWN_SWITCH
#else
#include <ucontext.h>
#endif

namespace ts::host {

constexpr size_t kStackBytes = 64 << 10;
constexpr u64 kCanary = 0x5AFE57ACC0DE1234ull;

struct Context {
#ifdef TS_OWN_SWITCH
  void* stack_pointer = nullptr;
#else
  ucontext_t saved;
#endif
};

#ifdef TS_OWN_SWITCH
extern "C" void ts_host_switch(Context* from, Context* to);
asm(R"(
.text
.globl ts_host_switch
.type ts_host_switch,@function
ts_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ts_host_switch,.-ts_host_switch
)");

inline void switch_context(Context* from, Context* to) { ts_host_switch(from, to); }

inline void make_context(Context* context, u8* stack, void (*body)()) {
  // Tops at different distances from the end: else the live ends of all stacks fall into the same sets of the caches.
  const u64 colour = reinterpret_cast<u64>(stack) / kStackBytes * 37 % 64;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - colour * 192);
  *--top = nullptr;                              // where `body` would return to; keeps the stack aligned at its entry
  *--top = reinterpret_cast<void*>(body);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the callee-saved registers
  context->stack_pointer = top;
}
#else
inline void switch_context(Context* from, Context* to) { swapcontext(&from->saved, &to->saved); }

inline void make_context(Context* context, u8* stack, void (*body)()) {
  getcontext(&context->saved);
  context->saved.uc_stack.ss_sp = stack;
  context->saved.uc_stack.ss_size = kStackBytes;
  context->saved.uc_link = nullptr;
  makecontext(&context->saved, body, 0);
}
#endif

// Stacks are taken from slabs and used again by later blocks, and by later machines of the process: most of a short run
// would else be page faults of fresh stacks. A canary at the low end tells an overflow.
class StackPool {
 public:
  u8* take() {
    if (free_.empty()) grow();
    u8* stack = free_.back();
    free_.pop_back();
    *reinterpret_cast<u64*>(stack) = kCanary;
    return stack;
  }
  void give(u8* stack) { free_.push_back(stack); }
  static bool intact(const u8* stack) { return *reinterpret_cast<const u64*>(stack) == kCanary; }

  // Once no fiber lives, given back or not: keeps the first slabs, so that one large run does not hold its memory forever.
  void trim() {
    free_.clear();
    for (; slabs_.size() > kKeptSlabs; slabs_.pop_back()) munmap(slabs_.back(), kSlabStacks * kStackBytes);
    for (size_t slab = slabs_.size(); slab-- > 0;) offer(slabs_[slab]);
  }

 private:
  static constexpr size_t kSlabStacks = 64, kKeptSlabs = 256;
  void grow() {
    void* slab = mmap(nullptr, kSlabStacks * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw "no memory for the stacks of the fibers";
    slabs_.push_back(static_cast<u8*>(slab));
    offer(slabs_.back());
  }
  void offer(u8* slab) {
    for (size_t i = kSlabStacks; i-- > 0;) free_.push_back(slab + i * kStackBytes);
  }
  std::vector<u8*> slabs_, free_;
};

}  // namespace ts::host
