// A contract: what steps of training move between two ranks is recorded in a file, and later steps are held to it.
//   holon-launch --nproc_per_node 2 ./contract [FILE]
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "check.h"
namespace flow = holon;

// Two layers, the first split by its outputs and the second by its inputs. set_line() names what follows in the file
// and in messages.
static void train(bool with_extra = false) {
  const auto placement = flow::placement("cpu", {0, 1});
  flow::manual_seed(1);
  auto up = flow::randn({8, 16}, {.placement = placement, .sbp = flow::sbp::split(1), .requires_grad = true});
  auto down = flow::randn({16, 8}, {.placement = placement, .sbp = flow::sbp::split(0), .requires_grad = true});
  flow::optim::SGD optimizer({up, down}, {.lr = 0.01});
  for (int step = 0; step < 3; ++step) {
    auto x = flow::randn({4, 8}, {.placement = placement, .sbp = flow::sbp::split(0)});
    flow::contract::set_line("forward");
    auto y = flow::matmul(flow::relu(flow::matmul(x, up)), down);
    if (with_extra) {
      flow::contract::set_line("extra");
      y = y.to_global(placement, flow::sbp::split(0));
    }
    flow::contract::set_line("loss");
    auto loss = flow::mean(y * y);
    flow::contract::set_line("backward");
    loss.backward();
    flow::contract::set_line("update");
    optimizer.step();
    optimizer.zero_grad();
  }
  flow::contract::set_line("");
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "train.contract";
  {
    flow::contract::Guard recorded(file, flow::contract::Mode::kRecord);
    train();
  }
  {
    flow::contract::Guard kept(file);
    train();  // the same boxings, with the file's layouts and paths
  }
  std::string refused;
  try {
    flow::contract::Guard kept(file);
    train(true);
  } catch (const flow::Error& error) {
    refused = error.what();
  }
  refused = refused.substr(0, refused.find('\n'));

  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  const std::string all = text.str(), step = all.substr(all.find("== step"));
  if (flow::rank() == 0) std::cout << step << "\nrefused: " << refused << "\n";
  return expect(step.find("matmul.x (B, S(1)) ") != std::string::npos &&
                refused.find("extra moves data that is not in the contract") != std::string::npos);
}
