package config

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"larder/internal/nearest"
)

//go:embed environment.txt
var environment string

// knownEnv are the lines of environment.txt: names, and beginnings of names with a * behind them.
var knownEnv = func() (names []string) {
	for line := range strings.Lines(environment) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	return names
}()

// Variable is an environment variable that is no key of the configuration.
type Variable struct{ Name, Doc string }

// Variables lists the variables of clients and of the command line. Those of tests and of Kubernetes are in
// environment.txt only.
func Variables() []Variable {
	return []Variable{
		{EnvPrefix + "CONFIG", "file of the configuration, where `--config` is not given"},
		{EnvPrefix + "BIN", "binary that a script starts when no daemon serves its socket"},
		{EnvPrefix + "FALLBACK", "`error` has a `larder.torch.DataLoader` refuse what torch would serve"},
		{EnvPrefix + "AUDIT_LOG", "folder where clients record what they receive, for `larder audit`"},
		{EnvPrefix + "TOKEN_FILE", "file of the token that a client shows over TCP, as `--token-file`"},
		{EnvPrefix + "TLS_CA", "PEM authorities that a client trusts over TCP, as `--tls-ca`"},
		{EnvPrefix + "TLS_CERT", "PEM certificate that a client shows over TCP, as `--tls-cert`"},
		{EnvPrefix + "TLS_KEY", "PEM key of that certificate, as `--tls-key`"},
	}
}

// UnknownEnv says which variables of env (as os.Environ gives it) begin with LARDER_ and mean nothing, and what was
// probably meant. A name with two underscores can be nothing but a key, so Load refuses a wrong one.
func UnknownEnv(env []string) (warnings []string) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) || strings.Contains(name[len(EnvPrefix):], "__") || envKnown(name) {
			continue
		}
		hint := "larder config show --origin lists the keys, and LARDER_TIERS__DECODED sets tiers.decoded"
		if n := meantEnv(name); n != "" {
			hint = "did you mean " + n + "?"
			if strings.Contains(n, "__") {
				hint += " (two underscores stand for a dot)"
			}
		}
		warnings = append(warnings, fmt.Sprintf("the environment variable %.80s means nothing to larder; %s", name, hint))
	}
	slices.Sort(warnings)
	return warnings
}

func envKnown(name string) bool {
	return slices.ContainsFunc(knownEnv, func(k string) bool {
		begin, open := strings.CutSuffix(k, "*")
		return name == k || open && len(name) > len(begin) && strings.HasPrefix(name, begin)
	})
}

// meantEnv is the known name that a wrong one is probably meant to be: the same but for underscores, the last part of a
// key, else the nearest.
func meantEnv(name string) string {
	bare := func(s string) string { return strings.ReplaceAll(s, "_", "") }
	last, users := "", knownEnv[:0:0]
	for _, k := range knownEnv {
		if strings.HasSuffix(k, "*") {
			continue
		}
		if bare(k) == bare(name) {
			return k
		}
		users = append(users, k)
		if i := strings.LastIndex(k, "__"); i >= 0 && bare(k[i:]) == bare(name[len(EnvPrefix):]) &&
			(last == "" || len(k) < len(last)) {
			last = k
		}
	}
	if last != "" {
		return last
	}
	for i, k := range users { // all begin alike, which would make them look near
		users[i] = k[len(EnvPrefix):]
	}
	if n := nearest.Word(name[len(EnvPrefix):], users); n != "" {
		return EnvPrefix + n
	}
	return ""
}
