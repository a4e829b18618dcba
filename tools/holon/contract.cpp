#include "contract.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "holon/base/error.h"
#include "holon/contract/cost.h"
#include "holon/contract/document.h"

namespace holon {

namespace {

constexpr int kDiffer = 1;

struct ContractArguments {
  std::string file, other, machine, python;
  int ranks = 1, hosts = 0;
  bool no_values = false;
  std::vector<std::string> program;
};

// The launcher that was installed with this command, else the one of the PATH.
std::string launcher() {
  std::error_code failed;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const auto beside = self.parent_path() / "holon-launch";
  return !failed && std::filesystem::exists(beside, failed) ? beside.string() : "holon-launch";
}

[[noreturn]] void become(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  fail_runtime("{} cannot be run: {}. Install Holon's launcher next to this command, and name a Python interpreter "
               "that exists by --python.",
               words[0], std::strerror(errno));
}

// Becomes the launcher with the program, under the contract.
int launch(const ContractArguments& a, const char* variable) {
  if (a.program.empty())
    fail_value("no program was named. Write holon contract record -n 2 -o FILE PROGRAM [ARGUMENTS].");
  setenv(variable, std::filesystem::absolute(a.file).c_str(), 1);
  unsetenv(std::strcmp(variable, "HOLON_CONTRACT") == 0 ? "HOLON_CONTRACT_RECORD" : "HOLON_CONTRACT");
  if (a.no_values) {
    // One process that is a rank of a world without data.
    unsetenv(variable);
    std::vector<std::string> words{a.python.empty() ? "python3" : a.python,
                                   "-m",
                                   "holon._without_values",
                                   std::filesystem::absolute(a.file).string(),
                                   std::to_string(a.ranks),
                                   std::to_string(a.hosts ? a.hosts : 1)};
    words.insert(words.end(), a.program.begin(), a.program.end());
    become(words);
  }
  std::vector<std::string> words{launcher(), "-n", std::to_string(a.ranks)};
  if (!a.python.empty()) words.insert(words.end(), {"--python", a.python});
  words.push_back("--");
  words.insert(words.end(), a.program.begin(), a.program.end());
  become(words);
}

int cost(const ContractArguments& a) {
  const contract::AnyDevice any;
  const contract::Document d = contract::read_document(a.file);
  const MachineCosts recorded = parse_costs(d.machine, {});
  const Machine machine{parse_costs(a.machine, recorded), contract::spread_over(d.ranks, a.hosts ? a.hosts : d.hosts)};
  std::fputs(contract::cost_text(d, machine).c_str(), stdout);
  return 0;
}

int diff(const ContractArguments& a) {
  const contract::AnyDevice any;
  const std::string text = contract::diff_text(contract::read_document(a.file), contract::read_document(a.other));
  std::fputs(text.empty() ? "the contracts are the same\n" : text.c_str(), stdout);
  return text.empty() ? 0 : kDiffer;
}

}  // namespace

void add_contract_commands(CLI::App& app, std::function<int()>* command) {
  auto a = std::make_shared<ContractArguments>();
  auto* all = app.add_subcommand("contract",
                                 "What a program moves between ranks, as a file: record it, hold a program to it, see "
                                 "what it costs");
  all->require_subcommand(1);
  auto runs = [&](const char* name, const char* text, const char* variable) {
    auto* sub = all->add_subcommand(name, text);
    sub->add_option("-n,--nproc_per_node,--nproc-per-node", a->ranks, "Ranks")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    sub->add_option("--python", a->python, "Run the program as a script of this Python interpreter");
    // The program and its arguments follow.
    sub->prefix_command();
    sub->callback([a, command, variable, sub] {
      a->program = sub->remaining();
      if (!a->program.empty() && a->program[0] == "--") a->program.erase(a->program.begin());
      *command = [a, variable] { return launch(*a, variable); };
    });
    return sub;
  };
  auto* record = runs("record", "Run a program and write its boxings to a file", "HOLON_CONTRACT_RECORD");
  record->add_option("-o,--output", a->file, "The file to write")->required();
  auto* no_values = record->add_flag("--no-values", a->no_values,
                                     "Run a Python program on one process, without data: for any number of ranks, and "
                                     "programs that read no values");
  record
      ->add_option("--hosts", a->hosts, "With --no-values: hosts that the ranks are on, as many on each; 1 by default")
      ->check(CLI::Range(1, 4096))
      ->needs(no_values);
  runs("check", "Run a program and stop at the first boxing that is not in the file", "HOLON_CONTRACT")
      ->add_option("-c,--contract", a->file, "The file")
      ->required();
  auto* costs = all->add_subcommand("cost", "Print what each line of the program costs on a cluster");
  costs->add_option("file", a->file, "The contract")->required();
  costs->add_option("--machine", a->machine,
                    "Figures of the cluster, as in HOLON_MACHINE_COSTS: \"copy=1e10,net=2e9\"; the others, and all by "
                    "default, are those of the recording");
  costs->add_option("--hosts", a->hosts, "Hosts that the ranks are on, as many on each; by default as recorded");
  costs->callback([a, command] { *command = [a] { return cost(*a); }; });
  auto* differ = all->add_subcommand("diff", "Compare two contracts; the exit status is 1 if they differ");
  differ->add_option("file", a->file, "A contract")->required();
  differ->add_option("other", a->other, "The other one")->required();
  differ->callback([a, command] { *command = [a] { return diff(*a); }; });
}

}  // namespace holon
