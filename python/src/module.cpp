// holon._C: the core as a Python module. The package in python/holon gives its parts their public names.
#include "bind.h"

NB_MODULE(_C, m) {
  using namespace holon::python;
  // Types and functions of the module live as long as the process: at exit they are no leak.
  nb::set_leak_warnings(false);
  m.doc() = "Holon's C++ core. Use the package holon.";
  bind_errors(m);
  bind_types(m);
  bind_global(m);
  bind_tensor_type(m);
  bind_ops(m);
  bind_tensor(m);
  bind_conversion(m);
  bind_numpy(m);
  bind_data(m);
  bind_autograd(m);
  bind_boxing(m);
  bind_optim(m);
  bind_ranks(m);
}
