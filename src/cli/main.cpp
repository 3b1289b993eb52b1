// protrain COMMAND ...: turns words into a command, and whatever went wrong into one line and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "cli/commands.h"
#include "cli/terminal.h"

namespace protrain::cli {
namespace {

constexpr std::int64_t kLargestSeed = 9'000'000'000'000'000;  // that of the configuration
constexpr const char* kOverwriteHelp = "write over the model that the folder holds";

// libgomp reads this when it is loaded, which was before main: idle threads of the LibTorch team must sleep, or they
// take the cores of the lanes. So the program starts itself once more, unless the user chose.
void restart_with_passive_waiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // on failure: slower, not wrong
}

// A closed standard stream would hand its number to the next file opened, and progress lines would go into it. A full
// quota must come back as an error of the write, not as a signal.
void prepare_process() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) std::abort();
  }
  std::signal(SIGXFSZ, SIG_IGN);
  // A Ctrl-C ends the reader of our log too; the checkpoint must be saved all the same.
  std::signal(SIGPIPE, SIG_IGN);
}

class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: protrain " + usage_ + "\n"; }

 private:
  std::string usage_;
};

// A command that reads its words itself.
CLI::App* add_worded(CLI::App& app, const std::string& name, const std::string& usage, const std::string& does) {
  CLI::App* command = app.add_subcommand(name, usage + ": " + does);
  command->allow_extras();
  command->formatter(std::make_shared<UsageFormatter>(usage));
  return command;
}

bool g_exiting_by_choice = false;

// libgomp ends the program itself, with code 1, when it cannot start a thread.
void on_exit_called(int status, void*) {
  if (g_exiting_by_choice || status != 1) return;
  print_error("out of memory: the system refuses one more thread (limits on memory or threads: ulimit -v, -u)");
  _exit(static_cast<int>(ExitCode::kDoesNotFit));  // other threads run on: nothing is torn down under them
}

int run(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  // All its words are the Python part's, "--" too.
  if (first == "prepare") return prepare_command({argv + 2, argv + argc});

  CLI::App app("Trains LLMs whose state does not fit the GPU.");
  app.require_subcommand(1);

  CLI::App* train = add_worded(app, "train", "train CONFIG.yaml [--key value ...]", "pre-train or fine-tune a model");
  train->footer(train_help);
  CLI::App* plan = add_worded(app, "plan", "plan CONFIG.yaml [--hardware FILE ...] [--key value ...]",
                              "say what train would do, here or on hardware that is not there");
  plan->footer(plan_help);
  CLI::App* profile = add_worded(app, "profile", "profile CONFIG.yaml [--output FILE] [--refresh] [--key value ...]",
                                 "measure what a run's tasks cost on this machine");

  app.add_subcommand("prepare", "turn text or chats into a file of tokens (prepare --help)");  // for --help

  ExportArguments to_export;
  CLI::App* exporting = app.add_subcommand("export", "write a checkpoint or model as a Hugging Face model");
  exporting->add_option("from", to_export.from, "folder of a checkpoint or model")->required();
  exporting->add_option("to", to_export.to, "folder to write")->required();
  exporting->add_option("--dtype", to_export.dtype, "float32, bfloat16, float16 or auto: as it is")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}));
  exporting->add_flag("--overwrite", to_export.overwrite, kOverwriteHelp);

  InitArguments to_init;
  CLI::App* init = app.add_subcommand("init", "write a model with random weights");
  init->add_option("config", to_init.config, "folder with config.json")->required();
  init->add_option("to", to_init.to, "folder to write")->required();
  init->add_option("--seed", to_init.seed, "of the weights")->check(CLI::Range(std::int64_t{0}, kLargestSeed));
  init->add_option("--dtype", to_init.dtype, "float32, bfloat16 or float16")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  init->add_flag("--overwrite", to_init.overwrite, kOverwriteHelp);

  ReportArguments to_report;
  CLI::App* report = app.add_subcommand("report", "write one HTML page about a run");
  report->add_option("run", to_report.run, "folder of the run")->required();
  report->add_option("--output", to_report.output, "FILE.html to write; report.html in the run's folder without it");

  CLI::App* version = app.add_subcommand("version", "version and what this build can do");

  const auto is_first = [&](const CLI::App* command) { return command->get_name() == first; };
  if (!first.empty() && !first.starts_with('-') &&
      std::ranges::none_of(app.get_subcommands([](CLI::App*) { return true; }), is_first)) {
    fail(ExitCode::kConfig,
         "there is no command '{}'; there are train, plan, profile, report, prepare, export, init and version", first);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fail(ExitCode::kConfig, "{}; see protrain --help", error.what());
  }
  if (train->parsed()) {
    restart_with_passive_waiting(argv);
    return train_command(train->remaining());
  }
  if (profile->parsed()) {
    restart_with_passive_waiting(argv);
    return profile_command(profile->remaining());
  }
  if (plan->parsed()) {
    if (plan_measures(plan->remaining())) restart_with_passive_waiting(argv);
    return plan_command(plan->remaining());
  }
  if (report->parsed()) return report_command(to_report);
  if (exporting->parsed()) return export_command(to_export);
  if (init->parsed()) return init_command(to_init);
  return version->parsed() ? version_command() : 1;
}

}  // namespace
}  // namespace protrain::cli

int main(int argc, char** argv) {
  using protrain::ExitCode;
  using protrain::cli::print_error;
  protrain::cli::prepare_process();
  protrain::cli::install_log_sink();
  on_exit(protrain::cli::on_exit_called, nullptr);
  ExitCode code = ExitCode::kInternal;
  try {
    const int status = protrain::cli::run(argc, argv);
    if (!protrain::cli::answers_arrived()) {
      protrain::fail(ExitCode::kFiles, "the answer cannot be written: the standard output is full or closed");
    }
    protrain::cli::g_exiting_by_choice = true;
    return status;
  } catch (const protrain::Error& error) {
    print_error(error.what());
    code = error.code();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (protrain::is_out_of_memory(error)) {
      code = ExitCode::kDoesNotFit;
      print_error("out of memory, or a limit on memory or threads (ulimit -v, -u) is reached: " +
                  text.substr(0, text.find('\n')) +
                  "; lift the limit, or take less: a smaller per_device_train_batch_size or cutoff_len");
    } else {
      print_error("internal: " + text);
    }
  }
  protrain::cli::g_exiting_by_choice = true;
  return static_cast<int>(code);
}
