#ifdef TS_HOST
#include "primitives.hpp"
#else
#include "ptx.cuh"
#include "mma.cuh"
#endif
struct Maps {
  ts::TensorMap map[4];
};
