use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_runtime::cli::main()
}
