#define HOLON_ISA avx512
#include "holon/kernels/cpu/pool_loops_body.h"
