// Package config is the one place that defines larder's configuration: every key, its default, where its value came
// from, and what it means on this machine.
//
// Values come from defaults, a YAML file, LARDER_ environment variables and flags, later ones winning; all of them go
// through the same table of keys (keys.go), so a key cannot be known to one and unknown to another. A configuration is
// refused whole, with every mistake named at once. It does not apply anything: the command wires a Resolved into the
// rooms, and a Config belongs to the caller that loaded it.
package config
