//! Developer commands. `cargo xtask test` is exactly what continuous integration runs.

mod adopters;
mod alone;
mod api;
mod command;
mod guest;
mod house;
mod miri;
mod packages;
mod publish;
mod registry;
mod rust;
mod sizes;
mod soak;
mod step;
mod steps;
mod usage;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask <command>

  test                 every check, cheapest first; stops at the first that fails
  test --list          names the checks
  test --only NAME     runs one check (may be repeated)
  soak SECONDS         random traffic on machines of all shapes; every page accounted for
       [--seed N]      repeats a run's choices
       [--threads N]   instead of as many as the host has CPUs, and three times more
  miri                 unit tests and jobs under Miri, which finds undefined behaviour; needs
                       a nightly toolchain
  guest                builds the reference guest and the example kernels and shows their sizes
  adopters [--bless]   kernels of others on their allocator and on ours: tests, instructions, size;
                       with --bless these counts are the ones that are kept
  api                  writes the lists of the public interface, docs/api
  sizes                what kernels of five kinds write and link (adopters/profiles)
  fmt                  formats all code
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return if words.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
        ["test", options @ ..] => match Options::read(options) {
            Ok(Options::List) => {
                step::list(steps::ALL);
                Ok(())
            }
            Ok(Options::Run { only }) if step::run_all(&step::selected(steps::ALL, &only)) => {
                Ok(())
            }
            Ok(Options::Run { .. }) => Err(String::new()),
            Err(wrong) => return usage(&wrong),
        },
        ["soak", words @ ..] => soak::run(words),
        ["miri"] => miri::run(),
        ["guest"] => guest::KERNELS
            .iter()
            .try_for_each(|kernel| guest::build(kernel).map(|image| println!("{image}")))
            .map_err(|failure| failure.output),
        ["adopters"] => adopters::run(false),
        ["adopters", "--bless"] => adopters::run(true),
        ["sizes"] => sizes::run(),
        ["api"] => api::write(),
        ["fmt"] => command::Run::cargo(&["fmt", "--all"])
            .output()
            .map(drop)
            .map_err(|failure| failure.output),
        _ => return usage(&format!("unknown command `{}`", words.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(output) => {
            eprint!("{output}");
            ExitCode::FAILURE
        }
    }
}

/// The options of `cargo xtask test`.
enum Options<'a> {
    List,
    /// Run the named steps, or all if no name is given.
    Run {
        only: Vec<&'a str>,
    },
}

impl<'a> Options<'a> {
    fn read(words: &[&'a str]) -> Result<Self, String> {
        let mut only = Vec::new();
        let mut list = false;
        let mut rest = words.iter();
        while let Some(&word) = rest.next() {
            match word {
                "--list" => list = true,
                "--only" => {
                    let name = *rest.next().ok_or("--only needs the name of a step")?;
                    if !steps::ALL.iter().any(|step| step.name == name) {
                        return Err(format!(
                            "there is no step `{name}`: cargo xtask test --list names them"
                        ));
                    }
                    only.push(name);
                }
                _ => return Err(format!("unknown option `{word}`")),
            }
        }
        Ok(if list { Self::List } else { Self::Run { only } })
    }
}

fn usage(wrong: &str) -> ExitCode {
    eprint!("xtask: {wrong}\n{HELP}");
    ExitCode::from(2)
}
