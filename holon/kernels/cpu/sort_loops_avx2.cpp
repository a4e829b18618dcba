#define HOLON_ISA avx2
#include "holon/kernels/cpu/sort_loops_body.h"
