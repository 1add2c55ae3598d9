//! The device's configuration space: its fields, and the rules that they must obey (virtio 1.2,
//! 5.15.4).

use crate::error::Rule;
use framewright_virtio::PAGE_SIZE;
use virtio_drivers::transport::Transport;

// Offsets of the fields, all little-endian.
const BLOCK_SIZE: usize = 0;
const NODE: usize = 8;
const ADDRESS: usize = 16;
const REGION_SIZE: usize = 24;
const USABLE_SIZE: usize = 32;
const PLUGGED_SIZE: usize = 40;
const REQUESTED_SIZE: usize = 48;

/// How often the configuration is read again if it changes while it is read.
const READS: u32 = 8;

/// The part of the configuration that never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The device's block size: the size and alignment of everything that is plugged and unplugged.
    pub block_bytes: u64,
    /// The first physical address.
    pub start_bytes: u64,
    /// All memory that the device may ever provide.
    pub size_bytes: u64,
    /// The proximity domain, if the device has one.
    pub node: Option<u16>,
}

impl Region {
    /// The first address after the region.
    #[must_use]
    pub const fn end_bytes(&self) -> u64 {
        // `checked` made sure that this does not wrap.
        self.start_bytes.saturating_add(self.size_bytes)
    }

    /// Refuses values that no device may have.
    fn checked(self) -> Result<Self, Rule> {
        let Self { block_bytes, start_bytes, size_bytes, .. } = self;
        if !block_bytes.is_power_of_two() || block_bytes < PAGE_SIZE {
            return Err(Rule::BlockSize { block_bytes });
        }
        for bytes in [start_bytes, size_bytes] {
            if !bytes.is_multiple_of(block_bytes) {
                return Err(Rule::Alignment { bytes, block_bytes });
            }
        }
        if start_bytes.checked_add(size_bytes).is_none() {
            return Err(Rule::Wraps { start_bytes, size_bytes });
        }
        Ok(self)
    }
}

/// The part of the configuration that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// The part of the region, from its start on, that may be plugged.
    pub usable_bytes: u64,
    pub plugged_bytes: u64,
    /// How much the host wants to be plugged.
    pub requested_bytes: u64,
}

impl Sizes {
    /// Refuses values that a device with this region may not have.
    pub fn checked(self, region: &Region) -> Result<Self, Rule> {
        let Self { usable_bytes, plugged_bytes, requested_bytes } = self;
        let block_bytes = region.block_bytes;
        for bytes in [usable_bytes, plugged_bytes, requested_bytes] {
            if !bytes.is_multiple_of(block_bytes) {
                return Err(Rule::Alignment { bytes, block_bytes });
            }
        }
        if usable_bytes > region.size_bytes {
            let region_bytes = region.size_bytes;
            return Err(Rule::Usable { usable_bytes, region_bytes });
        }
        if requested_bytes > usable_bytes {
            return Err(Rule::Requested { requested_bytes, usable_bytes });
        }
        if plugged_bytes > region.size_bytes {
            let region_bytes = region.size_bytes;
            return Err(Rule::Plugged { plugged_bytes, region_bytes });
        }
        Ok(self)
    }
}

/// The whole configuration as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Configuration {
    pub region: Region,
    pub sizes: Sizes,
    pub generation: u32,
}

/// Reads the configuration. `None` if it changed during every attempt; the error is the
/// transport's.
pub fn read<T: Transport>(
    transport: &T,
    has_node: bool,
) -> Result<Option<Configuration>, virtio_drivers::Error> {
    at_one_moment(transport, |transport| {
        let node = if has_node {
            Some(u16::from_le(transport.read_config_space::<u16>(NODE)?))
        } else {
            None
        };
        let region = Region {
            block_bytes: field(transport, BLOCK_SIZE)?,
            start_bytes: field(transport, ADDRESS)?,
            size_bytes: field(transport, REGION_SIZE)?,
            node,
        };
        Ok((region, sizes(transport)?))
    })
    .map(|read| {
        read.map(|((region, sizes), generation)| Configuration { region, sizes, generation })
    })
}

/// Reads the part that changes, and the generation. `None` if it changed during every attempt.
pub fn read_sizes<T: Transport>(
    transport: &T,
) -> Result<Option<(Sizes, u32)>, virtio_drivers::Error> {
    at_one_moment(transport, sizes)
}

/// Returns the configuration if it obeys the rules.
pub fn checked(configuration: Configuration) -> Result<Configuration, Rule> {
    let region = configuration.region.checked()?;
    configuration.sizes.checked(&region)?;
    Ok(configuration)
}

fn sizes<T: Transport>(transport: &T) -> Result<Sizes, virtio_drivers::Error> {
    Ok(Sizes {
        usable_bytes: field(transport, USABLE_SIZE)?,
        plugged_bytes: field(transport, PLUGGED_SIZE)?,
        requested_bytes: field(transport, REQUESTED_SIZE)?,
    })
}

/// Returns what `read` returned and the generation, once the generation was the same before and
/// after the read.
fn at_one_moment<T: Transport, V>(
    transport: &T,
    mut read: impl FnMut(&T) -> Result<V, virtio_drivers::Error>,
) -> Result<Option<(V, u32)>, virtio_drivers::Error> {
    for _ in 0..READS {
        let before = transport.read_config_generation();
        let value = read(transport)?;
        if transport.read_config_generation() == before {
            return Ok(Some((value, before)));
        }
    }
    Ok(None)
}

/// Reads a field of 64 bits. Transports read at most 32 bits at once.
fn field<T: Transport>(transport: &T, offset: usize) -> Result<u64, virtio_drivers::Error> {
    let half = |offset| transport.read_config_space::<u32>(offset).map(u32::from_le);
    Ok(u64::from(half(offset)?) | u64::from(half(offset + 4)?) << 32)
}
