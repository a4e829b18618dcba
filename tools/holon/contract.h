// `holon contract`: a program's communication as a file.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace holon {

// *command: what the chosen subcommand does, which returns the exit status; empty if another one was chosen.
void add_contract_commands(CLI::App& app, std::function<int()>* command);

}  // namespace holon
