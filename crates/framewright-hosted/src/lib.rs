//! Framewright: hosted.
