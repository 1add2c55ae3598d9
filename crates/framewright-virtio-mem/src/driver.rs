//! The driver: starts and resets the device, and does one bounded step of work at a time.

use crate::configuration::{self, Configuration, Region};
use crate::error::{DeviceFault, StartError};
use crate::features::Features;
use crate::memory::PluggableMemory;
use crate::plan::Plan;
use crate::progress::{Counters, Progress};
use crate::request::{Channel, DESCRIPTORS, QUEUE};
use crate::settings::Settings;
use crate::units::Units;
use core::fmt;
use core::mem::ManuallyDrop;
use framewright_virtio::{self as virtio, PrivateMemory};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};

/// The state of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    /// The device has broken a rule. Its queue is not used until it is reset.
    Faulty(DeviceFault),
    /// A reset has begun. If there is a fault, the device is not started again after it.
    Resetting(Option<DeviceFault>),
    /// The device is reset and has not been started.
    Stopped(Option<DeviceFault>),
}

/// A virtio-mem device.
///
/// Dropping it resets the device. Memory that is in use then stays in use, but the next driver of
/// the device, in this kernel or the next, unplugs all of it first. Nobody may use any of it by
/// that time.
pub struct VirtioMem<H: PrivateMemory, T: Transport> {
    /// Dropped only when the device does not use it any more.
    channel: ManuallyDrop<Channel<H>>,
    /// `virtio::release` drops it.
    transport: ManuallyDrop<T>,
    features: Features,
    region: Region,
    state: State,
    plan: Plan<H>,
}

impl<H: PrivateMemory, T: Transport> VirtioMem<H, T> {
    /// Resets the device, agrees on features, checks its configuration and starts it.
    ///
    /// `is_taken` is called with the first and the last address of the device's region, and says
    /// whether anything else is there: memory, registers, or another device's region. From then on
    /// the region belongs to the driver.
    ///
    /// # Errors
    /// See [`StartError`]. The transport is never dropped, then or later: see
    /// [`release`](virtio::release).
    pub fn new(
        transport: T,
        settings: Settings,
        is_taken: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Self, StartError> {
        let mut transport = ManuallyDrop::new(transport);
        match Self::prepare(&mut *transport, settings, is_taken) {
            Ok((features, channel, region, plan)) => {
                let channel = ManuallyDrop::new(channel);
                let state = State::Stopped(None);
                let mut device = Self { channel, transport, features, region, state, plan };
                device.start();
                Ok(device)
            }
            // The driver has already waited for the reset.
            Err(StartError::ResetPending) => Err(StartError::ResetPending),
            Err(error) => {
                virtio::release(ManuallyDrop::into_inner(transport));
                Err(error)
            }
        }
    }

    /// Resets the device, agrees on features and creates everything that is needed to start it.
    fn prepare(
        transport: &mut T,
        settings: Settings,
        is_taken: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Features, Channel<H>, Region, Plan<H>), StartError> {
        let kind = transport.device_type();
        if kind != DeviceType::Memory {
            return Err(StartError::NotVirtioMem(kind));
        }
        if !settings.grain_bytes.is_power_of_two() {
            return Err(StartError::BadGrain { grain_bytes: settings.grain_bytes });
        }
        if !virtio::reset(transport) {
            return Err(StartError::ResetPending);
        }
        let features = negotiate(transport)?;
        let (channel, region, plan) = Self::configure(transport, features, settings, is_taken)
            .inspect_err(|_| transport.set_status(DeviceStatus::FAILED))?;
        Ok((features, channel, region, plan))
    }

    fn configure(
        transport: &mut T,
        features: Features,
        settings: Settings,
        is_taken: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Channel<H>, Region, Plan<H>), StartError> {
        let configuration = read(transport, features)?;
        let region = configuration.region;
        let (start_bytes, end_bytes) = (region.start_bytes, region.end_bytes());
        if end_bytes > settings.limit_bytes {
            let limit_bytes = settings.limit_bytes;
            return Err(StartError::BeyondLimit { end_bytes, limit_bytes });
        }
        if region.size_bytes > 0 && is_taken(start_bytes, end_bytes - 1) {
            return Err(StartError::Taken { start_bytes, end_bytes });
        }
        let units = Units::of(&region, settings.grain_bytes)
            .map_err(|units| StartError::TooLarge { units })?;
        let most = transport.max_queue_size(QUEUE);
        if most < DESCRIPTORS.into() {
            return Err(StartError::MissingQueue);
        }
        let channel = Channel::new(most).ok_or(StartError::OutOfMemory)?;
        let plan = Plan::new(units, configuration, &settings).ok_or(StartError::OutOfMemory)?;
        Ok((channel, region, plan))
    }

    /// The features that device and driver have agreed on.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The device's region of physical addresses.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// The unit in which memory comes and goes: the device's block, or the grain of the settings if
    /// that is larger.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        self.plan.units().unit_bytes
    }

    /// How much is plugged, as far as the device has acknowledged.
    #[must_use]
    pub fn plugged_bytes(&self) -> u64 {
        self.plan.plugged_bytes()
    }

    /// The number of requests so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.plan.counters()
    }

    /// Why the device is not running, or `None` if it is.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        match self.state {
            State::Running => None,
            State::Faulty(fault) | State::Resetting(Some(fault)) | State::Stopped(Some(fault)) => {
                Some(fault)
            }
            State::Resetting(None) => Some(DeviceFault::Resetting),
            State::Stopped(None) => Some(DeviceFault::Stopped),
        }
    }

    /// Does one step; never waits. A step takes the answer to the request in flight, tells `memory`
    /// about the result, reads how much the host wants, and sends the next request. Call this when
    /// [`Progress::due_ns`] says, which is how answers are seen, after interrupts, which tell of
    /// other sizes that the host wants, and, if there are no interrupts, now and then.
    /// `now_ns` comes from any clock that does not run backwards.
    ///
    /// # Safety
    /// `memory` is the one that all of this device's memory went to, and what the closure that
    /// [`new`](Self::new) got said about the region is true.
    ///
    /// # Errors
    /// The device has broken a rule, or asks to be reset. Memory in use stays in use.
    pub unsafe fn work(
        &mut self,
        memory: &mut dyn PluggableMemory,
        now_ns: u64,
    ) -> Result<Progress, DeviceFault> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        // SAFETY: the caller keeps this function's promise.
        let step = unsafe { self.step(memory, now_ns) };
        if let Err(fault) = step {
            self.state = State::Faulty(fault);
        }
        step
    }

    /// Tells the driver that the device has announced a change of its configuration, for a kernel
    /// that handles such announcements in a separate interrupt. The driver then tries at once what
    /// it was waiting to do, with one exception: it does not plug memory again for an adopter that
    /// took less than it was given. That waits until the host wants other sizes, or until
    /// [`memory_changed`](Self::memory_changed).
    pub fn config_changed(&mut self) {
        self.plan.note_event();
    }

    /// Tells the driver that the adopter's memory has changed: more can be added, or more can be
    /// removed. The driver then tries at once what it was waiting to do.
    pub fn memory_changed(&mut self) {
        self.plan.note_change();
    }

    /// Acknowledges an interrupt, for a handler that must do so at once.
    pub fn acknowledge_interrupt(&mut self) -> InterruptStatus {
        let status = self.transport.ack_interrupt();
        if status.contains(InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT) {
            self.plan.note_event();
        }
        status
    }

    /// Resets the device and starts it again. Returns only when the device has completed the reset,
    /// however long that takes; [`try_reset`](Self::try_reset) does not wait. Memory stays as it
    /// is; if a request was not answered, the driver then asks the device what became of it.
    ///
    /// # Errors
    /// The device could not be started again.
    pub fn reset(&mut self) -> Result<(), StartError> {
        while !self.try_reset()? {
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// Begins a reset, or continues one. Returns true once the device has completed it and was
    /// started again.
    ///
    /// # Errors
    /// As for [`reset`](Self::reset).
    pub fn try_reset(&mut self) -> Result<bool, StartError> {
        if !self.stop() {
            return Ok(false);
        }
        if let State::Stopped(Some(fault)) = self.state {
            return Err(StartError::Broken(fault));
        }
        // If anything fails from here on, only a reset can undo what the device has been told.
        self.state = State::Faulty(DeviceFault::Stopped);
        let features = negotiate(&mut *self.transport)?;
        let is_same = features == self.features
            && self.transport.max_queue_size(QUEUE) >= self.channel.descriptors().into();
        let configuration = if is_same {
            read(&*self.transport, features).and_then(|configuration| {
                let is_same = configuration.region == self.region;
                if is_same { Ok(configuration) } else { Err(StartError::Changed) }
            })
        } else {
            Err(StartError::Changed)
        };
        match configuration {
            Ok(configuration) => {
                self.plan.restart(configuration);
                self.start();
                Ok(true)
            }
            Err(error) => {
                self.transport.set_status(DeviceStatus::FAILED);
                Err(error)
            }
        }
    }

    /// Stops the device. Returns true once that is done. Returns false if the device has not
    /// completed its reset: call this again then. Memory in use stays in use;
    /// [`reset`](Self::reset) starts the device again.
    pub fn stop(&mut self) -> bool {
        let last = match self.state {
            State::Stopped(_) => return true,
            State::Resetting(last) => last,
            State::Running | State::Faulty(_) => {
                let last = self.fault().filter(DeviceFault::is_final);
                self.state = State::Resetting(last);
                self.transport.set_status(DeviceStatus::empty());
                last
            }
        };
        if self.transport.get_status() != DeviceStatus::empty() {
            return false;
        }
        self.channel.clear();
        self.plan.forget_request();
        self.state = State::Stopped(last);
        true
    }

    /// Starts a device that has been reset and has accepted its features.
    fn start(&mut self) {
        // SAFETY: `channel` is dropped, and `stop` clears it, only after a reset (invariant 32).
        unsafe { self.channel.set_up(&mut *self.transport) };
        virtio::run(&mut *self.transport);
        self.state = State::Running;
    }

    /// # Safety
    /// As for [`work`](Self::work).
    unsafe fn step(
        &mut self,
        memory: &mut dyn PluggableMemory,
        now_ns: u64,
    ) -> Result<Progress, DeviceFault> {
        // Hosts with only message-signalled interrupts do not set its bits, so the configuration is
        // polled as well.
        self.acknowledge_interrupt();
        if self.transport.get_status().contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            return Err(DeviceFault::NeedsReset);
        }
        let mut changed = false;
        if let Some(answer) = self.channel.poll()? {
            // SAFETY: the caller keeps this function's promise; this is the device's answer.
            changed = unsafe { self.plan.finish(answer, memory, now_ns)? };
        }
        if !self.plan.is_waiting() {
            let sizes = configuration::read_sizes(&*self.transport);
            self.plan.look(sizes.map_err(DeviceFault::Configuration)?, now_ns)?;
            // SAFETY: the caller keeps this function's promise.
            if let Some(request) = unsafe { self.plan.next(memory, now_ns) } {
                let (address, blocks) = (request.address, request.blocks);
                // The plan has one request at a time, so there is room.
                let sent = self.channel.send(&mut *self.transport, request.kind, address, blocks);
                debug_assert!(sent, "room for one request");
            }
        }
        Ok(self.plan.progress(now_ns, changed))
    }
}

impl<H: PrivateMemory, T: Transport> fmt::Debug for VirtioMem<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtioMem")
            .field("features", &self.features)
            .field("region", &self.region)
            .field("state", &self.state)
            .field("plugged_bytes", &self.plugged_bytes())
            .finish_non_exhaustive()
    }
}

impl<H: PrivateMemory, T: Transport> Drop for VirtioMem<H, T> {
    fn drop(&mut self) {
        // SAFETY: the transport is taken once, and not used afterwards.
        let transport = unsafe { ManuallyDrop::take(&mut self.transport) };
        if virtio::release(transport) {
            // SAFETY: the channel is dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.channel) };
        }
        // Otherwise the device may still write into the queue, so it is leaked.
    }
}

/// Agrees on features with a device that has been reset.
fn negotiate<T: Transport>(transport: &mut T) -> Result<Features, StartError> {
    let agreed = virtio::agree(transport, |offered| Features::from_bits_truncate(offered).bits())?;
    Ok(Features::from_bits_truncate(agreed))
}

/// Reads and checks the whole configuration.
fn read<T: Transport>(transport: &T, features: Features) -> Result<Configuration, StartError> {
    let read = configuration::read(transport, features.contains(Features::ACPI_PXM));
    let configuration = read.map_err(StartError::Configuration)?.ok_or(StartError::Unsteady)?;
    configuration::checked(configuration).map_err(StartError::Rule)
}
