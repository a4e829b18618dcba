#include "holon/graph/nn_graph.h"

#include <cxxabi.h>

#include <cstdlib>
#include <typeinfo>

#include "holon/graph/graph_core.h"

namespace holon::nn {

namespace {

class UsersGraph final : public GraphCore {
 public:
  explicit UsersGraph(Graph& graph) : graph_(graph) {}
  std::vector<Tensor> build(TensorList inputs) override { return graph_.build(inputs); }

 protected:
  std::string name() const override {
    int status = 0;
    const char* mangled = typeid(graph_).name();
    std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
    return status == 0 ? text.get() : mangled;
  }

 private:
  Graph& graph_;
};

}  // namespace

Graph::Graph() : core_(std::make_unique<UsersGraph>(*this)), config(core_->config) {}
Graph::~Graph() = default;

std::vector<Tensor> Graph::operator()(TensorList inputs) { return core_->call(inputs, 0); }
void Graph::compile(TensorList examples) { core_->compile(examples); }
std::string Graph::str() const { return core_->str(); }
std::string Graph::plan() const { return core_->plan(); }
std::string Graph::captured() const { return core_->captured(); }
size_t Graph::n_signatures() const { return core_->n_signatures(); }
graph::StepStats Graph::stats(size_t signature) const { return core_->stats(signature); }
const graph::Step& Graph::step(size_t signature) const { return core_->step(signature); }
std::vector<double> Graph::grad_norms() const { return core_->grad_norms(); }
GraphState Graph::state_dict() const { return core_->state_dict(); }
void Graph::load_state_dict(const GraphState& state) { core_->load_state_dict(state); }
void Graph::replace_module(const std::string& path, const Module& module) { core_->replace_module(path, module); }
void Graph::add_optimizer(optim::Optimizer& optimizer, std::function<double(int64_t step)> lr) {
  core_->add_optimizer(optimizer, std::move(lr));
}
void Graph::set_grad_scaler(optim::GradScaler& scaler) { core_->set_grad_scaler(scaler); }
void Graph::set_stage(const Module& module, int stage, const Placement* placement) {
  core_->set_stage(module, stage, placement);
}
void Graph::set_activation_checkpointing(const Module& module, bool on) {
  core_->set_activation_checkpointing(module, on);
}
Module& Graph::root_for(const std::string& name) { return core_->root_for(name); }
void Graph::registered(const Module& module) { core_->registered(module); }

}  // namespace holon::nn
