//! The program `framewright`: brings up a machine's physical memory and shows it.

use framewright_cli::args::{self, Command};
use framewright_cli::error::{self, Error};
use framewright_cli::{boot, plug, report, shell, top};
use std::process::ExitCode;

fn main() -> ExitCode {
    error::begin("framewright");
    let outcome = match args::read() {
        Ok(Some(Command::Boot(boot))) => boot::run(&boot),
        Ok(Some(Command::Shell(shell))) => shell::run(&shell.target),
        Ok(Some(Command::Top(top))) => top::run(&top),
        Ok(Some(Command::Plug(plug))) => plug::run(&plug),
        Ok(Some(Command::Report(report))) => report::run(&report).map(|()| 0),
        Ok(None) => Ok(0),
        Err(error) => Err(error),
    };
    outcome.map_or_else(Error::tell, ExitCode::from)
}
