#include <torch/torch.h>
#include <iostream>
namespace nn = torch::nn;

int main() {
  nn::Linear net(3, 2), copy(3, 2);
  torch::serialize::OutputArchive out;
  net->save(out);
  out.write("step", c10::IValue(7));
  out.save_to("program.pt");
  torch::serialize::InputArchive in;
  in.load_from("program.pt");
  copy->load(in);
  c10::IValue step;
  in.read("step", step);
  auto x = torch::ones({1, 3});
  std::cout << step.toInt() << " " << torch::allclose(net(x), copy(x)) << "\n";
}
