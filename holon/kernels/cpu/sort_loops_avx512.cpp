#define HOLON_ISA avx512
#include "holon/kernels/cpu/sort_loops_body.h"
