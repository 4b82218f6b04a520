"""What certificates are worth, and what to do about them: rankings, policies, segments, hardening, calibration."""
