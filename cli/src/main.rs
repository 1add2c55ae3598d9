//! The program `framewright`: brings up a machine's physical memory and shows it.

mod args;
mod attach;
mod bench;
mod boot;
mod compare;
mod error;
mod file;
mod grid;
mod hosted;
mod interrupt;
mod machine;
mod model;
mod output;
mod progress;
mod qemu;
mod report;
mod shell;
mod snapshot;
mod targets;
mod top;

use args::{Command, Compare};
use error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    error::shorten_panics();
    let outcome = match args::read() {
        Ok(Some(Command::Boot(boot))) => boot::run(&boot),
        Ok(Some(Command::Shell(shell))) => shell::run(&shell.target),
        Ok(Some(Command::Top(top))) => top::run(&top),
        Ok(Some(Command::Bench(bench))) => bench::run(&bench).map(|()| 0),
        Ok(Some(Command::Compare(Compare::Linux(options)))) => compare::run(&options).map(|()| 0),
        Ok(Some(Command::Report(report))) => report::run(&report).map(|()| 0),
        Ok(Some(Command::Model(options))) => model::run(&options).map(|()| 0),
        Ok(None) => Ok(0),
        Err(error) => Err(error),
    };
    outcome.map_or_else(Error::tell, ExitCode::from)
}
