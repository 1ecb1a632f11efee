package rpc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

const someToken = "0123456789abcdef0123456789abcdef"

func tokenFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every method but health wants the token, streams too; what is not exactly one bearer token is refused.
func TestTokens(t *testing.T) {
	tokens, err := OpenTokens(tokenFile(t, "\n  "+someToken+"  \n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	_, raw, _ := serve(t, Config{Tokens: tokens, Engine: &fake{stats: func(context.Context) (*larderv1.GetStatsResponse,
		error) {
		asked++
		return &larderv1.GetStatsResponse{}, nil
	}}})
	client := larderv1.NewLarderServiceClient(raw)
	for name, c := range map[string]struct {
		given []string
		want  codes.Code
	}{
		"right":       {[]string{"Bearer " + someToken}, codes.OK},
		"any case":    {[]string{"bEARER " + someToken}, codes.OK},
		"none":        {nil, codes.Unauthenticated},
		"empty":       {[]string{""}, codes.Unauthenticated},
		"no token":    {[]string{"Bearer "}, codes.Unauthenticated},
		"no scheme":   {[]string{someToken}, codes.Unauthenticated},
		"basic":       {[]string{"Basic " + someToken}, codes.Unauthenticated},
		"a beginning": {[]string{"Bearer " + someToken[:16]}, codes.Unauthenticated},
		"more":        {[]string{"Bearer " + someToken + "0"}, codes.Unauthenticated},
		"twice":       {[]string{"Bearer " + someToken, "Bearer " + someToken}, codes.Unauthenticated},
	} {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{authHeader: c.given})
		before := asked
		_, err := client.GetStats(ctx, &larderv1.GetStatsRequest{})
		if status.Code(err) != c.want || asked-before != map[bool]int{true: 1}[c.want == codes.OK] {
			t.Errorf("%s: %v, and the engine was asked %d times", name, err, asked-before)
		}
		if c.want != codes.OK {
			f := errs.From(Fault(err))
			if f.Reason != errs.Unauthenticated || f.Hint == "" || strings.Contains(f.Error(), someToken[:16]) {
				t.Errorf("%s: %v", name, f)
			}
		}
		w, err := client.WatchStats(ctx, &larderv1.WatchStatsRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		if status.Code(err) != c.want {
			t.Errorf("%s, a stream: %v", name, err)
		}
	}
	if _, err := healthv1.NewHealthClient(raw).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Errorf("health without a token: %v", err)
	}
	r, err := reflectionv1.NewServerReflectionClient(raw).ServerReflectionInfo(t.Context())
	if err == nil {
		_, err = r.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection without a token: %v", err)
	}
}

func TestTokenFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(tokenFile(t, someToken), link); err != nil {
		t.Fatal(err)
	}
	if got, err := readTokens(link); err != nil || len(got) != 1 || got[0] != someToken {
		t.Errorf("through a link: %v, %v", got, err)
	}
	if got, err := readTokens(tokenFile(t, someToken+"\r\n\n"+someToken[8:]+"\n")); err != nil || len(got) != 2 {
		t.Errorf("two tokens: %v, %v", got, err)
	}
	for path, want := range map[string]string{
		pipe: "no plain file", dir: "no plain file", filepath.Join(dir, "none"): "no such file",
		tokenFile(t, ""): "is empty", tokenFile(t, " \n\t\n"): "is empty", tokenFile(t, "short"): "16 to 4096",
		tokenFile(t, "two words "+someToken): "no blank", tokenFile(t, someToken+"\u00e9"): "ASCII",
		tokenFile(t, strings.Repeat("x", maxToken+1)):      "16 to 4096",
		tokenFile(t, strings.Repeat("\n", maxTokenFile+1)): "larger than",
	} {
		if _, err := readTokens(path); err == nil || !strings.Contains(err.Error(), want) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
	}
	for _, mode := range []os.FileMode{0o604, 0o640, 0o620, 0o601} {
		path := tokenFile(t, someToken)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenTokens(path, nil); err == nil || !strings.Contains(err.Error(), "others than its owner") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}
