//! Fetches Debian's newest kernel for virtual machines with apt, from the system's own package
//! sources and without a change to the system: lists, settings and packages are in a folder of our
//! own. What was fetched is kept and used from then on, so that comparisons of different days have
//! the same kernel; who wants a newer one removes the folder.

use super::version::newest;
use crate::bench::common::failed;
use framewright_cli::attach::own_folder;
use framewright_cli::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

/// The meta package that depends on the newest kernel.
const META: &str = "linux-image-cloud-amd64";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Advice for systems without apt.
const HOW: &str = "give a kernel with --kernel: a bzImage such as /boot/vmlinuz-*, or Debian's, \
    from any machine with apt: \
                   `apt-get download linux-image-VERSION-cloud-amd64` and `dpkg-deb -x \
                   linux-image-*.deb FOLDER`, then --kernel FOLDER/boot/vmlinuz-*";

/// A kernel that was fetched before, or is fetched now.
///
/// # Errors
/// Fails if this is not Debian or apt failed, and says how to get a kernel otherwise.
pub fn provide() -> Result<PathBuf, Error> {
    let folder = cache().map_err(|error| failed(format!("no folder for kernels: {error}")))?;
    if let Some(kernel) = kept(&folder) {
        return Ok(kernel);
    }
    let suite = fs::read_to_string("/etc/os-release")
        .ok()
        .and_then(|text| debian_suite(&text))
        .ok_or_else(|| {
            Error::Usage(format!(
                "no kernel to compare with: one can be fetched only on Debian; {HOW}"
            ))
        })?;
    fetch(&folder, &suite)
        .map_err(|why| failed(format!("Debian's kernel cannot be fetched: {why}; {HOW}")))?;
    kept(&folder).ok_or_else(|| failed(format!("the fetched package has no kernel; {HOW}")))
}

/// The folder for fetched files: nobody else may put a kernel there.
fn cache() -> io::Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    match cache {
        Some(cache) => Ok(Path::new(&cache).join("framewright")),
        None if workspace.join("Cargo.toml").is_file() => Ok(workspace.join("target/linux")),
        None => own_folder("framewright-linux"),
    }
}

/// The newest kernel in the folder.
fn kept(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder.join("root/boot")).ok()?;
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let versions: Vec<String> =
        names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
    let version = newest(versions.iter().map(String::as_str))?;
    Some(folder.join("root/boot").join(format!("vmlinuz-{version}")))
}

/// The name of the Debian release, such as `bookworm`; `None` on other systems.
fn debian_suite(os_release: &str) -> Option<String> {
    let value = |name: &str| {
        let line =
            os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    (value("ID")? == "debian")
        .then(|| value("VERSION_CODENAME"))
        .flatten()
        .filter(|suite| !suite.is_empty())
}

fn fetch(folder: &Path, suite: &str) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    for part in ["lists/partial", "cache/archives/partial", "packages"] {
        fs::create_dir_all(folder.join(part)).map_err(text)?;
    }
    let folder = fs::canonicalize(folder).map_err(text)?;
    let mut list = Command::new("apt-get");
    list.args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(COMPONENT) $(RELEASE) $(CODENAME)",
        "Created-By: Packages",
    ]);
    let listed = run(&folder, &mut list)?;
    let mirrors = mirrors(&listed, suite);
    if mirrors.is_empty() {
        return Err(format!("apt's sources on this machine name no mirror of Debian {suite}"));
    }
    // Backports have newer kernels; a new release has no backports yet.
    let backports = format!("{suite}-backports");
    if let Err(why) = update(&folder, &mirrors, &[&backports, suite]) {
        update(&folder, &mirrors, &[suite]).map_err(|_| why)?;
    }
    let shown = run(&folder, apt("apt-cache", &folder).args(["show", META]))?;
    let (package, version) = choose(&shown).ok_or_else(|| format!("apt does not know {META}"))?;
    let packages = folder.join("packages");
    run(&packages, apt("apt-get", &folder).arg("download").arg(format!("{package}={version}")))?;
    let files = fs::read_dir(&packages).map_err(text)?;
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
    };
    let file = files.filter_map(|file| Some(file.ok()?.path())).find(is_it);
    let file = file.ok_or_else(|| format!("apt did not fetch {package}"))?;
    // Only a complete folder gets the final name.
    let (unpacked, root) = (folder.join("unpacked"), folder.join("root"));
    let _ = fs::remove_dir_all(&unpacked);
    run(&folder, Command::new("dpkg-deb").arg("-x").arg(&file).arg(&unpacked))?;
    let _ = fs::remove_dir_all(&root);
    fs::rename(&unpacked, &root).map_err(text)
}

/// The mirrors of a Debian release, each once, among apt's sources, which are listed as lines of
/// mirror, component, release as requested, and, if known, the release's name.
fn mirrors<'a>(listed: &'a str, suite: &str) -> Vec<&'a str> {
    let mut mirrors = Vec::new();
    for line in listed.lines() {
        let mut words = line.split_whitespace();
        let (Some(place), Some("main")) = (words.next(), words.next()) else { continue };
        let place = place.trim_end_matches('/');
        // Other vendors use equal release names. A mirror may also be a file that lists mirrors.
        let is_debian = place.strip_suffix(".list").unwrap_or(place).ends_with("/debian");
        if is_debian && words.any(|release| release == suite) && !mirrors.contains(&place) {
            mirrors.push(place);
        }
    }
    mirrors
}

fn update(folder: &Path, mirrors: &[&str], suites: &[&str]) -> Result<(), String> {
    let line = |mirror, suite| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n");
    let lines =
        mirrors.iter().flat_map(|mirror| suites.iter().map(move |suite| line(mirror, suite)));
    fs::write(folder.join("sources.list"), lines.collect::<String>())
        .map_err(|error| error.to_string())?;
    run(folder, apt("apt-get", folder).args(["-o", "APT::Update::Error-Mode=any", "update"]))
        .map(|_| ())
}

/// A command of one of apt's programs that writes only in our folder.
fn apt(program: &str, folder: &Path) -> Command {
    let option = |name: &str, value: &Path| {
        let mut text = OsString::from(name);
        text.push("=");
        text.push(value);
        text
    };
    let settings = [
        option("Dir::Etc::sourcelist", &folder.join("sources.list")),
        option("Dir::Etc::sourceparts", Path::new("/dev/null")),
        option("Dir::State::lists", &folder.join("lists")),
        option("Dir::Cache", &folder.join("cache")),
        // Otherwise root would have to let apt's sandbox user write here.
        option("APT::Sandbox::User", Path::new("root")),
        option("Acquire::Languages", Path::new("none")),
    ];
    let mut command = Command::new(program);
    settings.iter().for_each(|setting| {
        command.arg("-o").arg(setting);
    });
    command
}

/// Runs a command. Returns its output, or why it failed.
fn run(folder: &Path, command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.current_dir(folder).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.starts_with("E:")).or_else(|| said.lines().last());
    Err(format!("{name}: {}", why.unwrap_or("failed without a message")))
}

/// Parses apt's description of all versions of the meta package. Returns the newest kernel package
/// and its version.
fn choose(shown: &str) -> Option<(String, String)> {
    let field = |stanza: &str, name: &str| {
        stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
    };
    let kernels: Vec<(String, String)> = shown
        .split("\n\n")
        .filter(|stanza| field(stanza, "Package").as_deref() == Some(META))
        .filter_map(|stanza| {
            let depends = field(stanza, "Depends")?;
            // Such as `linux-image-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)`.
            let (package, rest) = depends
                .split(',')
                .find(|part| part.trim().starts_with("linux-image-"))?
                .trim()
                .split_once(' ')?;
            Some((package.to_owned(), rest.strip_prefix("(= ")?.split_once(')')?.0.to_owned()))
        })
        .collect();
    let version = newest(kernels.iter().map(|(_, version)| version.as_str()))?.to_owned();
    kernels.into_iter().find(|kernel| kernel.1 == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
Package: linux-image-cloud-amd64
Source: linux-signed-amd64 (6.1.159+1)
Version: 6.1.159-1
Depends: linux-image-6.1.0-42-cloud-amd64 (= 6.1.159-1)

Package: linux-image-cloud-amd64
Version: 6.12.95-1~bpo12+1
Depends: linux-image-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)
Description: a kernel

Package: linux-image-cloud-amd64
Version: 6.12.9-1~bpo12+1
Depends: linux-image-6.12.9+bpo-cloud-amd64 (= 6.12.9-1~bpo12+1)

Package: linux-image-cloud-amd64-dbg
Version: 7.0
Depends: linux-image-7.0-cloud-amd64-dbg (= 7.0)
";

    #[test]
    fn the_newest_package_is_chosen() {
        let chosen =
            ("linux-image-6.12.95+deb12-cloud-amd64".to_owned(), "6.12.95-1~bpo12+1".to_owned());
        assert_eq!(choose(SHOWN), Some(chosen));
        assert_eq!(choose(""), None);
        assert_eq!(choose("Package: linux-image-cloud-amd64\nVersion: 1\nDepends: foo\n"), None);
    }

    #[test]
    fn mirrors_are_those_of_the_system() {
        let listed = "\
http://one.invalid/debian/ main bookworm bookworm
http://one.invalid/debian/ main bookworm-updates bookworm-updates
http://one.invalid/debian main bookworm bookworm
http://one.invalid/debian-security/ main bookworm-security bookworm-security
https://two.invalid/mirrors/debian/ contrib bookworm bookworm
https://two.invalid/mirrors/debian/ main stable bookworm
https://others.invalid/apt/ main bookworm bookworm
https://others.invalid/debian/ main trixie trixie
mirror+file:///etc/apt/mirrors/debian.list main bookworm $(CODENAME)

nonsense
";
        let bookworm = [
            "http://one.invalid/debian",
            "https://two.invalid/mirrors/debian",
            "mirror+file:///etc/apt/mirrors/debian.list",
        ];
        assert_eq!(mirrors(listed, "bookworm"), bookworm);
        assert_eq!(mirrors(listed, "trixie"), ["https://others.invalid/debian"]);
        assert_eq!(mirrors(listed, "sid"), [""; 0]);
    }

    #[test]
    fn only_debian_has_a_suite() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 \
            (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(debian_suite(debian).as_deref(), Some("bookworm"));
        assert_eq!(
            debian_suite("ID=\"debian\"\nVERSION_CODENAME=\"trixie\"").as_deref(),
            Some("trixie")
        );
        assert_eq!(debian_suite("ID=ubuntu\nVERSION_CODENAME=noble"), None);
        assert_eq!(debian_suite("ID=debian\n"), None);
    }

    #[test]
    fn what_is_kept_is_found() {
        let folder = std::env::temp_dir().join(format!("framewright-fetch-{}", std::process::id()));
        assert_eq!(kept(&folder), None);
        fs::create_dir_all(folder.join("root/boot")).expect("a folder");
        assert_eq!(kept(&folder), None);
        for name in ["vmlinuz-6.9.1", "vmlinuz-6.12.1", "config-7.0"] {
            fs::write(folder.join("root/boot").join(name), "").expect("a file");
        }
        assert_eq!(kept(&folder), Some(folder.join("root/boot/vmlinuz-6.12.1")));
        fs::remove_dir_all(&folder).expect("ours");
    }
}
