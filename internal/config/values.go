package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"larder/internal/errs"
)

// value reads and writes the value of one key as text.
type value struct {
	set func(*Config, string) error // the error names neither key nor place
	get func(*Config) string
}

func textOf(at func(*Config) *string, check func(string) error) value {
	return value{
		set: func(c *Config, s string) error {
			if err := check(s); err != nil {
				return err
			}
			*at(c) = s
			return nil
		},
		get: func(c *Config) string { return *at(c) },
	}
}

func sizeOf(at func(*Config) *Size) value {
	return value{
		set: func(c *Config, s string) error {
			v, err := ParseSize(s)
			if err != nil {
				return err
			}
			*at(c) = v
			return nil
		},
		get: func(c *Config) string { return at(c).String() },
	}
}

// durationOf is a length of time from lo to hi, or 0.
func durationOf(at func(*Config) *time.Duration, lo, hi time.Duration) value {
	return value{
		set: func(c *Config, s string) error {
			d, err := time.ParseDuration(s)
			if err != nil {
				return errors.New("it is not a duration like 30s or 1h30m")
			}
			if d != 0 && (d < lo || d > hi) {
				return fmt.Errorf("it must be 0, or between %s and %s", formatDuration(lo), formatDuration(hi))
			}
			*at(c) = d
			return nil
		},
		get: func(c *Config) string { return formatDuration(*at(c)) },
	}
}

func boolOf(at func(*Config) *bool) value {
	return value{
		set: func(c *Config, s string) error {
			switch strings.ToLower(s) {
			case "true", "1", "yes", "on":
				*at(c) = true
			case "false", "0", "no", "off":
				*at(c) = false
			default:
				return errors.New("it is neither true nor false")
			}
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*at(c)) },
	}
}

// intOf is a whole number from lo to hi.
func intOf[T int | int64](at func(*Config) *T, lo, hi int64) value {
	return value{
		set: func(c *Config, s string) error {
			n, err := parseInt(s, lo, hi)
			if err == nil {
				*at(c) = T(n)
			}
			return err
		},
		get: func(c *Config) string { return strconv.FormatInt(int64(*at(c)), 10) },
	}
}

// orAuto is intOf with the word auto, which is kept as 0.
func orAuto(at func(*Config) *int, lo, hi int64) value {
	number := intOf(at, lo, hi)
	return value{
		set: func(c *Config, s string) error {
			if strings.EqualFold(s, "auto") {
				*at(c) = 0
				return nil
			}
			return number.set(c, s)
		},
		get: func(c *Config) string {
			if *at(c) == 0 {
				return "auto"
			}
			return number.get(c)
		},
	}
}

func setFairness(c *Config, s string) error {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v <= 1) {
		return errors.New("it is not a number from 0 to 1")
	}
	c.Tiers.Fairness = v
	return nil
}

func setLease(c *Config, s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("it is not a duration like 30s or 5m")
	}
	if d < time.Second || d > 7*24*time.Hour {
		return errors.New("it must be between 1s and 168h")
	}
	c.Jobs.Lease = d
	return nil
}

func setSeed(c *Config, s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return errors.New("it is not a whole number from 0 to 18446744073709551615")
	}
	c.Sampler.Seed = n
	return nil
}

func storageLimit(c *Config) string {
	if c.Source.StorageLimit == 0 {
		return ""
	}
	return FormatBytes(c.Source.StorageLimit) + "/s"
}

func parseInt(s string, lo, hi int64) (int64, error) {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("it is not a whole number from %d to %d", lo, hi)
	}
	if n < lo || n > hi {
		return 0, fmt.Errorf("it must be from %d to %d", lo, hi)
	}
	return n, nil
}

func setStorageLimit(c *Config, s string) error {
	if s == "" {
		c.Source.StorageLimit = 0
		return nil
	}
	v, err := ParseSize(strings.TrimSuffix(s, "/s"))
	if f, ok := errors.AsType[*errs.Error](err); ok {
		return errors.New(f.Message)
	}
	switch {
	case err != nil:
		return err
	case v.IsAuto() || v.IsPercent():
		return errors.New("it must be bytes a second, or empty for no limit")
	case v.Of(0) == 0:
		return errors.New("a limit of 0 would read nothing; leave it empty for no limit")
	}
	c.Source.StorageLimit = v.Of(0)
	return nil
}

func oneOf(what string, allowed ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(allowed, s) {
			return nil
		}
		hint := "write one of them"
		if n := Nearest(s, allowed); n != "" {
			hint = fmt.Sprintf("did you mean %s?", n)
		}
		return errs.New(errs.ConfigInvalid, "", hint, "%.40q is not %s; allowed are %s", s, what, strings.Join(allowed, ", "))
	}
}

func checkPath(s string) error {
	if strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
		return errors.New("a path must be UTF-8 without zero bytes")
	}
	return nil
}

// checkGroup does not ask whether the group exists: that is for the machine that serves.
func checkGroup(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == ':' || r == '/' || r == 0x7f }) ||
		len(s) > 256 {
		return errors.New("it is not the name or number of a group")
	}
	return nil
}

func checkAddr(s string) error {
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return errors.New("it is not host:port, e.g. 127.0.0.1:9464")
	}
	if _, err := parseInt(port, 0, 65535); err != nil {
		return fmt.Errorf("port %q: %w", port, err)
	}
	if strings.ContainsAny(host, " \t/\x00") {
		return fmt.Errorf("%q is not a host", host)
	}
	return nil
}

func checkHosts(s string) error {
	for _, name := range (HTTP{Hosts: s}).Names() {
		if strings.ContainsAny(name, " \t/@*\x00") {
			return fmt.Errorf("%q is not a host name", name)
		}
		if _, port, err := net.SplitHostPort(name); err == nil {
			return fmt.Errorf("%q has a port: any port is good, leave out :%s", name, port)
		}
	}
	return nil
}

func formatDuration(d time.Duration) string {
	s := d.String() // 30m0s
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Loopback reports whether an address host:port can be reached from this machine only. A name counts only if it is
// localhost: what another name means can change after it was checked.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// expand makes a path absolute, so that the daemon and what it starts mean the same file.
func expand(path string) string {
	if path == "" {
		return ""
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// onePolicy is oneOf of Policies, and has an answer for those that exist but not in a daemon.
func onePolicy(s string) error {
	if s == "belady" || strings.HasPrefix(s, "clairvoyant-") {
		return errs.New(errs.ConfigInvalid, "",
			"use need, which goes by what is known of it; larder bench sampler can use this one",
			"%.40q needs to know everything that will be asked for", s)
	}
	return oneOf("a policy", Policies...)(s)
}
