#include <CLI/CLI.hpp>

#include <cstdlib>

#include "holon/base/error.h"
#include "holon/comm/bootstrap/launcher.h"

namespace holon::comm {

LaunchOptions parse_launch_options(int argc, char** argv) {
  LaunchOptions o;
  CLI::App app("Starts a program as several ranks on this machine, one process each.\n"
               "  holon-launch -n 2 ./program arguments...\n"
               "  holon-launch -n 2 train.py arguments...",
               "holon-launch");
  app.prefix_command();
  app.add_option("-n,--nproc_per_node,--nproc-per-node", o.nproc_per_node, "Ranks on this machine")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--nnodes", o.nnodes, "Machines, each with its own holon-launch")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--node_rank,--node-rank", o.node_rank, "This machine's number, counted from 0")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--master_addr,--master-addr", o.master_addr, "Address of machine 0")->capture_default_str();
  app.add_option(
         "--master_port,--master-port", o.master_port,
         "Port of the store, where the ranks connect; by default chosen by the system, 29500 for several machines")
      ->check(CLI::Range(0, 65535));
  app.add_option("--token_file,--token-file", o.token_file,
                 "File with the machines' shared secret, on a file system that all of them see; machine 0 creates it. "
                 "By default HOLON_STORE_TOKEN, else machine 0 generates one and prints it");
  app.add_option("--logdir", o.logdir, "Keep a copy of each rank's output in this folder");
  app.add_flag("--redirect_stdout_and_stderr,--redirect-stdout-and-stderr", o.redirect,
               "Write output to --logdir only");
  app.add_flag("--label", o.label, "Begin each line of a rank's output with [rank N]");
  app.add_option("--grace_period,--grace-period", o.grace_period_s,
                 "Seconds that ranks have to exit after SIGTERM or Ctrl-C before they are killed")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--contract", o.contract,
                 "Hold the program to this file of its boxings (docs/guides/contract.md); a path that every rank sees");
  app.add_option("--simulate", o.simulate, "cuda: run \"cuda\" placements on the CPU")->check(CLI::IsMember({"cuda"}));
  app.add_option("--python", o.python, "Run the program as a script of this Python interpreter");
  app.add_flag("-m,--module", o.module, "The program is a Python module, as in python3 -m");
  app.add_flag("--no_python,--no-python", o.no_python, "Run the program itself, ignoring --python");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    fail_value("{}. Run holon-launch --help for the options.", e.what());
  }
  o.program = app.remaining();
  if (!o.program.empty() && o.program[0] == "--") o.program.erase(o.program.begin());
  if (o.program.empty())
    fail_value("no program was named. Write holon-launch -n 2 PROGRAM [ARGUMENTS]; --help lists the options.");
  if (o.program[0].starts_with("-"))
    fail_value(
        "{} is not an option of holon-launch. Options of the program come after its name; --help lists the launcher's.",
        o.program[0]);
  if (o.node_rank >= o.nnodes)
    fail_value("--node_rank {} of --nnodes {}: machines are counted from 0.", o.node_rank, o.nnodes);
  if (o.redirect && o.logdir.empty()) o.logdir = "log";
  return o;
}

}  // namespace holon::comm
