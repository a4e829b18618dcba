// The program in a file of torch.save().
#include "checkpoint/other_files.h"
#include "holon/base/error.h"
#include "holon/checkpoint/formats/pickle.h"
#include "reader.h"

using namespace holon;

std::vector<std::string> seeds() {
  using checkpoint::PickleText;
  PickleText state, plain, nested;
  state.name("collections", "OrderedDict").raw(")R(").text("w").tensor("FloatStorage", "0", 6, 0, {2, 3}, {3, 1});
  state.text("b").tensor("BFloat16Storage", "1", 9, 3, {2, 2}, {2, 1}).raw("u}").text("_metadata").raw("Nsb");
  plain.raw("}(").text("lr").raw("G?\xb9\x99\x99\x99\x99\x99\x9a").text("betas").raw("K\1M\2\1\x86");
  plain.text("n").raw("\x8a\3\1\2\3").text("x").raw("](N\x88\x89\x65u");
  nested.raw("]q\1(h\1h\1K\1e").raw("}q\2").text("k").raw("h\1sa");
  return {state.str(), plain.str(), nested.str()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    checkpoint::unpickle({reinterpret_cast<const char*>(data), size}, "pickle");
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) throw;
  }
  return 0;
}
