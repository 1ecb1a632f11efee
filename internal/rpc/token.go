package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"larder/internal/errs"
	"larder/internal/units"
)

// Bounds of a token. A short one can be guessed, a long one does not fit a header beside the others.
const (
	minToken     = 16
	maxToken     = 4096
	maxTokenFile = 64 << 10
	bearer       = "Bearer "
	authHeader   = "authorization"
	makeToken    = "write one with: (umask 077; openssl rand -hex 32 > FILE)" //nolint:gosec // says how to make one
)

// readTokens reads the tokens of a file, one a line; blank lines are nothing. The file must be a plain one that only
// its owner may read or write.
func readTokens(path string) ([]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		reason := errs.ConfigInvalid
		if errors.Is(err, os.ErrNotExist) {
			reason = errs.NotFound
		}
		return nil, errs.New(reason, path, makeToken, "read the token").Because(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, path, makeToken, "read the token").Because(err)
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, errs.New(errs.ConfigInvalid, path, makeToken, "the token file %s is no plain file", path)
	case st.Mode().Perm()&0o077 != 0:
		return nil, errs.New(errs.ConfigInvalid, path,
			"run: chmod 600 "+path+"; every user who could read it has the token, so make another one",
			"others than its owner may use the token file %s (mode %04o)", path, st.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, path, makeToken, "read the token").Because(err)
	}
	if len(b) > maxTokenFile {
		return nil, errs.New(errs.ConfigInvalid, path, makeToken, "the token file %s is larger than %s", path,
			units.Size(maxTokenFile))
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		t := strings.TrimSpace(line)
		if t == "" {
			continue
		}
		if len(t) < minToken || len(t) > maxToken || strings.ContainsFunc(t,
			func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, errs.New(errs.ConfigInvalid, path, makeToken,
				"the token file %s: a token has %d to %d printable characters of ASCII and no blank, one of them a line", path,
				minToken, maxToken)
		}
		out = append(out, t)
	}
	if len(out) == 0 {
		return nil, errs.New(errs.ConfigInvalid, path, makeToken, "the token file %s is empty", path)
	}
	return out, nil
}

// Tokens lets calls in that bring a token of a file. The file is read again for every call: calls over TCP are few, and
// a token that was taken out of it is refused from then on. Safe for concurrent use.
type Tokens struct {
	path string
	log  *slog.Logger
	mu   struct {
		sync.Mutex
		trouble string // the last thing that was logged about the file
	}
}

// OpenTokens refuses a file that cannot be used. log may be nil.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if _, err := readTokens(path); err != nil {
		return nil, err
	}
	return &Tokens{path: path, log: log}, nil
}

// admit checks the token of a call.
func (t *Tokens) admit(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	given := md.Get(authHeader)
	if len(given) == 0 {
		return errs.New(errs.Unauthenticated, "token",
			"name the file that holds the daemon's token, with --token-file or LARDER_TOKEN_FILE",
			"this daemon asks for a token over TCP, and the call has none")
	}
	known, err := readTokens(t.path)
	t.report(err)
	if err != nil { // without the file no caller is admitted
		return errs.New(errs.Unauthenticated, "token", "the daemon's log says what is wrong with it",
			"the daemon cannot read its token file")
	}
	text := given[0]
	if len(given) > 1 || len(text) < len(bearer) || !strings.EqualFold(text[:len(bearer)], bearer) {
		return errs.New(errs.Unauthenticated, "token", "send authorization: Bearer TOKEN, once",
			"the call's authorization is no bearer token")
	}
	// Sums of one length: neither the time nor the way of the comparison reveals anything about a token, its length
	// included.
	sum := sha256.Sum256([]byte(strings.TrimSpace(text[len(bearer):])))
	found := 0
	for _, k := range known {
		s := sha256.Sum256([]byte(k))
		found |= subtle.ConstantTimeCompare(sum[:], s[:])
	}
	if found != 1 {
		return errs.New(errs.Unauthenticated, "token", "take the daemon's token of today: --token-file or LARDER_TOKEN_FILE",
			"the call's token is not one of this daemon's")
	}
	return nil
}

// report logs what is wrong with the file, once until it changes.
func (t *Tokens) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	t.mu.Lock()
	was := t.mu.trouble
	t.mu.trouble = text
	t.mu.Unlock()
	switch {
	case text != "" && text != was:
		t.log.Error("no call over TCP is let in: the token file cannot be used", "error", err)
	case text == "" && was != "":
		t.log.Info("the token file can be used again", "file", t.path)
	}
}

// open reports whether a method needs no token: all that reach the daemon may learn whether it serves.
func open(method string) bool {
	return strings.HasPrefix(method, "/"+healthv1.Health_ServiceDesc.ServiceName+"/")
}

func (t *Tokens) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !open(info.FullMethod) {
		if err := t.admit(ctx); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}

func (t *Tokens) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !open(info.FullMethod) {
		if err := t.admit(ss.Context()); err != nil {
			return err
		}
	}
	return next(srv, ss)
}

// bearerFile sends the first token of a file with every call.
type bearerFile struct {
	path   string
	secure bool // never without TLS
}

var _ credentials.PerRPCCredentials = bearerFile{}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearerFile) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	tokens, err := readTokens(b.path)
	if err != nil { // gRPC lets few codes through from here
		return nil, Status(errs.New(errs.Unauthenticated, b.path, errs.From(err).Hint, "send the token").Because(err))
	}
	return map[string]string{authHeader: bearer + tokens[0]}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearerFile) RequireTransportSecurity() bool { return b.secure }
