//! Devices that access memory in a way this driver does not support are refused, at the start and
//! after a reset.

use crate::common::{Driver, nothing_is_left, start};
use framewright_balloon::{Settings, StartError};
use framewright_testkit::balloon::{FakeBalloon, Offer};

const ACCESS: u64 = 1 << 33;
const ORDER: u64 = 1 << 36;

#[test]
fn a_device_that_needs_the_platform_is_refused_and_left_alone() {
    for (bits, text) in [
        (
            ACCESS,
            "the virtio balloon requires ACCESS_PLATFORM, which is not supported: it is left alone",
        ),
        (
            ORDER,
            "the virtio balloon requires ORDER_PLATFORM, which is not supported: it is left alone",
        ),
        (
            ACCESS | ORDER,
            "the virtio balloon requires ACCESS_PLATFORM and ORDER_PLATFORM, \
             which is not supported: it is left alone",
        ),
    ] {
        let host =
            FakeBalloon::offering(Offer { features: Offer::USUAL.features | bits, ..Offer::USUAL });
        let refused = start(&host).map(|_| ()).expect_err("refused");
        assert_eq!(
            refused,
            StartError::NeedsPlatform { access: bits & ACCESS != 0, order: bits & ORDER != 0 }
        );
        assert_eq!(refused.to_string(), text);
        assert_eq!(host.accepted(), 0, "nothing was agreed on");
        assert!(!host.is_running() && host.notifications() == 0);
        nothing_is_left();
    }
}

#[test]
fn a_device_that_needs_it_from_a_reset_on_is_stopped() {
    let host = FakeBalloon::new();
    let mut balloon =
        Driver::new(host.transport(), Settings::default()).expect("a device that is well");
    host.set_offer(Offer { features: Offer::USUAL.features | ACCESS, ..Offer::USUAL });
    assert_eq!(balloon.reset(), Err(StartError::NeedsPlatform { access: true, order: false }));
    assert!(!host.is_running());
    drop(balloon);
    nothing_is_left();
}
