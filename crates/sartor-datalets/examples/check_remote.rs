//! `check_remote HOST:PORT` or `check_remote /PATH/OF/SOCKET`: the conformance suite against a store that speaks
//! `templates/datalet.proto`. What is in the store is removed. Exit code 0 if all of it holds.

use sartor_datalets::{Options, conformance, remote};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("usage: check_remote HOST:PORT, or /PATH/OF/SOCKET");
        return ExitCode::from(2);
    };
    let options = Options { address, ..Options::default() };
    let engine = match remote::declared(&options) {
        Ok(engine) => engine,
        Err(error) => {
            eprintln!("check_remote: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("ordered: {}, durable: {}", engine.ordered, engine.durable);
    let verdicts = conformance::check(&engine, &options);
    for verdict in &verdicts {
        match &verdict.result {
            Ok(()) => println!("ok    {}", verdict.check),
            Err(why) => println!("FAILS {}: {why}", verdict.check),
        }
    }
    if verdicts.iter().all(|verdict| verdict.result.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
