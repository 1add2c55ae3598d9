//! The CRC-32 of a file, by all CPUs at once: each chunk has its own, and the caller joins them in
//! the order of the file.
//!
//! ```console
//! $ cargo run --release -p framewright-hosted --example parallel_checksum [FILE]
//! ```
//!
//! Without a file it sums bytes that it makes up.

use framewright_hosted::HostedHelpers;
use framewright_jobs::{Job, JobError};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Bytes whose sums are kept apart. A chunk is some of these.
const PIECE_BYTES: usize = 64 << 10;

/// The polynomial of zlib and Ethernet, lowest bit first.
const POLYNOMIAL: u32 = 0xedb8_8320;

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let (mut index, mut byte) = (0, 0_u32);
    while index < 256 {
        let (mut value, mut bit) = (byte, 0);
        while bit < 8 {
            value = if value & 1 == 0 { value >> 1 } else { (value >> 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[index] = value;
        index += 1;
        byte += 1;
    }
    table
}

static TABLE: [u32; 256] = table();

fn crc32(bytes: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8);
    !bytes.iter().fold(!0, next)
}

/// The remainder of a product of two polynomials, lowest bit first.
fn times(mut one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    while one != 0 {
        if one & 1 << 31 != 0 {
            product ^= other;
        }
        one <<= 1;
        other = if other & 1 == 0 { other >> 1 } else { (other >> 1) ^ POLYNOMIAL };
    }
    product
}

/// What appending so many bytes multiplies a remainder with.
fn shift(bytes: usize) -> u32 {
    // x^8, squared again and again.
    let (mut power, mut result, mut rest) = (1 << 23, 1 << 31, bytes);
    while rest != 0 {
        if rest & 1 == 1 {
            result = times(result, power);
        }
        power = times(power, power);
        rest >>= 1;
    }
    result
}

fn parallel_crc32(bytes: &[u8]) -> Result<(u32, u32), JobError<Infallible>> {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES).collect();
    let sums: Vec<AtomicU32> = pieces.iter().map(|_| AtomicU32::new(0)).collect();
    let job = Job::new(0..pieces.len() as u64);
    let summary = job.run(HostedHelpers::shared(), |chunk, _worker| {
        let indices = usize::try_from(chunk.start).unwrap_or(usize::MAX)
            ..usize::try_from(chunk.end).unwrap_or(0);
        let work = pieces
            .get(indices.clone())
            .unwrap_or_default()
            .iter()
            .zip(sums.get(indices).unwrap_or_default());
        // What a chunk wrote is visible when `run` returns: Relaxed is enough.
        work.for_each(|(piece, sum)| sum.store(crc32(piece), Ordering::Relaxed));
        Ok(())
    })?;
    let whole = shift(PIECE_BYTES);
    let joined = pieces.iter().zip(sums).fold(0, |crc, (piece, sum)| {
        let factor = if piece.len() == PIECE_BYTES { whole } else { shift(piece.len()) };
        times(factor, crc) ^ sum.into_inner()
    });
    Ok((joined, summary.threads))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bytes = match std::env::args().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => (0..16_u32 << 20)
            .map(|index| index.wrapping_mul(0x9e37_79b9).to_be_bytes()[0])
            .collect(),
    };
    // Known answers, and every way to cut.
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    for end in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5] {
        let part = bytes.get(..end).unwrap_or(&bytes);
        assert_eq!(parallel_crc32(part).map(|(crc, _)| crc), Ok(crc32(part)));
    }
    let began = Instant::now();
    let (crc, threads) = parallel_crc32(&bytes).map_err(|error| format!("{error:?}"))?;
    let together = began.elapsed();
    let began = Instant::now();
    let alone = crc32(&bytes);
    println!(
        "{} bytes: {crc:08x}, {threads} threads {together:?}, one {:?}",
        bytes.len(),
        began.elapsed()
    );
    assert_eq!(crc, alone);
    Ok(())
}
