#define HOLON_ISA avx2
#include "holon/kernels/cpu/pool_loops_body.h"
