#define HOLON_ISA avx2
#include "holon/kernels/cpu/attention_loops_body.h"
