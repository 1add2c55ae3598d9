//! The program `framewright-bench`: measures the memory manager, compares it with others, and makes
//! reports of the results.

mod args;
mod bench;
mod compare;
mod machine;
mod model;
mod progress;
mod registry;
mod report;
mod rows;
mod targets;

use args::{Command, Compare};
use framewright_cli::error::{self, Error};
use std::process::ExitCode;

fn main() -> ExitCode {
    error::begin("framewright-bench");
    let outcome = match args::read() {
        Ok(Some(Command::Bench(bench))) => bench::run(&bench),
        Ok(Some(Command::Compare(Compare::Linux(options)))) => compare::run(&options),
        Ok(Some(Command::Report(report))) => report::run(&report),
        Ok(Some(Command::Model(options))) => model::run(&options),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    outcome.map_or_else(Error::tell, |()| ExitCode::SUCCESS)
}
