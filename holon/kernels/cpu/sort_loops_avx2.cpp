#define HOLON_ISA avx2
#define HOLON_VECTOR_BYTES 32
#include "holon/kernels/cpu/sort_loops_body.h"
