//! The program `sartor`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sartor::run()
}
