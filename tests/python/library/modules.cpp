// Modules and functions for test_cpp_modules.py.
#include <holon/holon.h>

#include <chrono>
#include <thread>

using namespace holon;

namespace {

struct Net : nn::Layer<Net> {
  nn::Linear up, down;
  nn::Dropout drop;
  nn::Parameter scale;
  nn::Buffer seen;
  Net(int64_t width, double dropout)
      : up(register_module("up", nn::Linear(4, width))),
        down(register_module("down", nn::Linear(width, 3))),
        drop(register_module("drop", nn::Dropout(dropout))),
        scale(register_parameter("scale", ones({3}))),
        seen(register_buffer("seen", zeros({1}))) {
    register_buffer("scratch", zeros({2}), false);
  }
  Tensor forward(const Tensor& x) const { return down(drop(relu(up(x)))) * scale; }
};

// Grows in C++.
struct Stack : nn::Layer<Stack> {
  nn::Sequential layers;
  Stack() { register_module("layers", layers); }
  Tensor forward(const Tensor& x) const { return layers(x); }
};

// Called with more than one tensor; returns more than one.
struct Mixed : nn::Layer<Mixed> {
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& x, double factor, const std::optional<Tensor>& mask,
                                                 const std::vector<Tensor>& more) const {
    Tensor y = x * Scalar(factor);
    std::vector<Tensor> doubled;
    for (auto& t : more) doubled.push_back(t * Scalar(2.0));
    return {mask ? y * *mask : y, doubled};
  }
};

struct Global : nn::Layer<Global> {
  nn::Linear layer;
  Global(Placement placement, NdSbp sbp)
      : layer(register_module("layer", nn::Linear(4, 4, {.placement = placement, .sbp = sbp}))) {}
  Tensor forward(const Tensor& x) const { return layer(x); }
};

double train(Net& net, const data::Batches& batches, double lr) {
  optim::SGD sgd(net.parameters(), {.lr = lr});
  net.train();
  double last = 0;
  for (const auto& batch : batches) {
    sgd.zero_grad();
    Tensor loss = mse_loss(net(batch[0]), batch[1]);
    loss.backward();
    sgd.step();
    last = loss.item().as_double();
  }
  return last;
}

std::vector<int64_t> addresses(const nn::Module& module) {
  std::vector<int64_t> list;
  for (auto& [name, t] : module.state_dict()) list.push_back(reinterpret_cast<intptr_t>(t.data<float>().data()));
  return list;
}

Tensor call_net(const Net& net, const Tensor& x) { return net(x); }
bool in_training(const nn::Module& module) { return module.is_training(); }
void set_eval(nn::Module& module) { module.eval(); }
void grow(Stack& stack, int64_t width) { stack.layers.push_back(nn::Linear(width, width)); }
void tie(Stack& stack) { stack.replace_parameter("layers.1.weight", stack.get_parameter("layers.0.weight")); }
Net make(int64_t width) { return Net(width, 0); }
std::tuple<Net, int> make_two(int64_t width) { return {Net(width, 0), 2}; }
void new_up(Net& net) { net.up = nn::Linear(4, net.up.weight.shape()[0]); }

std::vector<std::vector<double>> sums(const data::Batches& batches, int64_t times) {
  std::vector<std::vector<double>> all;
  for (int64_t i = 0; i < times; ++i)
    for (const auto& batch : batches) {
      auto& row = all.emplace_back();
      for (auto& t : batch) row.push_back(t.sum().item().as_double());
    }
  return all;
}

// What a loop is left by goes through C++ as it is.
int64_t count_until_error(const data::Batches& batches) {
  int64_t n = 0;
  try {
    for (const auto& batch : batches) n += static_cast<int64_t>(batch.size());
  } catch (const std::exception&) {
    throw;
  }
  return n;
}

void fail_as(std::string_view kind) {
  if (kind == "value") fail_value("a value");
  if (kind == "type") fail_type("a type");
  if (kind == "index") fail(ErrorKind::kIndex, "an index");
  if (kind == "standard") throw std::out_of_range("a standard one");
  fail_runtime("at run time");
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

using Row = std::tuple<bool, int32_t, double, std::string, DType, std::optional<int64_t>, std::vector<std::string>>;
Row echo(bool b, int32_t n, double x, const std::string& text, DType dtype, std::optional<int64_t> perhaps,
         const std::vector<std::string>& list) {
  return {b, n, x, text, dtype, perhaps, list};
}
int64_t positional(int64_t a, int64_t b) { return a - b; }

}  // namespace

HOLON_PYTHON_MODULE(Net, int64_t, double)
    .arguments({"width", {"dropout", 0.0}})
    .forward_arguments({"x"})
    .doc("Two layers.");
HOLON_PYTHON_MODULE(Stack);
HOLON_PYTHON_MODULE(Mixed).forward_arguments(
    {"x", {"factor", 1}, {"mask", nullptr}, {"more", std::vector<exports::Value>()}});
HOLON_PYTHON_MODULE(Global, Placement, NdSbp).arguments({"placement", "sbp"});
HOLON_PYTHON_FUNCTION(train).arguments({"net", "batches", {"lr", 0.1}}).doc("One pass.");
HOLON_PYTHON_FUNCTION(addresses);
HOLON_PYTHON_FUNCTION(call_net);
HOLON_PYTHON_FUNCTION(in_training);
HOLON_PYTHON_FUNCTION(set_eval);
HOLON_PYTHON_FUNCTION(grow);
HOLON_PYTHON_FUNCTION(tie);
HOLON_PYTHON_FUNCTION(make);
HOLON_PYTHON_FUNCTION(make_two);
HOLON_PYTHON_FUNCTION(new_up);
HOLON_PYTHON_FUNCTION(sums).arguments({"batches", {"times", 1}});
HOLON_PYTHON_FUNCTION(count_until_error);
HOLON_PYTHON_FUNCTION(fail_as);
HOLON_PYTHON_FUNCTION(sleep_for);
HOLON_PYTHON_FUNCTION(echo).arguments(
    {"b", {"n", 1}, {"x", 0.5}, {"text", "t"}, {"dtype", nullptr}, {"perhaps", nullptr}, {"list", nullptr}});
HOLON_PYTHON_FUNCTION(positional);
