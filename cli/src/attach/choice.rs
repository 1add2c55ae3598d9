//! Chooses which of the user's processes is meant.

use super::place::Running;
use crate::error::Error;
use std::io;

/// Messages about processes of one sort.
pub struct Sort {
    /// Said if there is none, with how to start one.
    pub none: &'static str,
    /// Said if the named process is not of this sort.
    pub other: &'static str,
    /// Said if there are several.
    pub several: &'static str,
}

impl Sort {
    /// The process that was named, or the only one.
    ///
    /// # Errors
    /// Fails if there is none, or not this one, or several (the message lists them), or if they
    /// cannot be listed.
    pub fn find(
        &self,
        wanted: Option<u32>,
        running: io::Result<Vec<Running>>,
    ) -> Result<u32, Error> {
        let running = running.map_err(|error| Error::Failed(error.to_string()))?;
        let list = || {
            let line = |Running { pid, command }: &Running| format!("\n  {pid}  {command}");
            running.iter().map(line).collect::<String>()
        };
        match (wanted, running.as_slice()) {
            (Some(pid), _) if running.iter().any(|process| process.pid == pid) => Ok(pid),
            (None, [only]) => Ok(only.pid),
            (_, []) => Err(Error::Failed(self.none.into())),
            (Some(pid), _) => {
                Err(Error::Usage(format!("process {pid} {}; running now:{}", self.other, list())))
            }
            (None, _) => Err(Error::Usage(format!("{}{}", self.several, list()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_one_needs_no_name() {
        let sort = Sort { none: "none", other: "is no shell of yours", several: "several:" };
        let process = |pid| Running { pid, command: format!("framewright shell {pid}") };
        let find = |wanted, running: &[Running]| sort.find(wanted, Ok(running.to_vec()));
        assert!(matches!(find(None, &[process(7)]), Ok(7)));
        assert!(matches!(find(Some(8), &[process(7), process(8)]), Ok(8)));
        assert!(matches!(find(None, &[]), Err(Error::Failed(_))));
        assert!(matches!(find(Some(8), &[]), Err(Error::Failed(_))));
        let Err(Error::Usage(why)) = find(None, &[process(7), process(8)]) else { panic!("two") };
        assert_eq!(why, "several:\n  7  framewright shell 7\n  8  framewright shell 8");
        let Err(Error::Usage(why)) = find(Some(9), &[process(7)]) else { panic!("another") };
        assert_eq!(why, "process 9 is no shell of yours; running now:\n  7  framewright shell 7");
    }
}
