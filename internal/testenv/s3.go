package testenv

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// S3Server is versitygw, a real S3 server, on the loopback address.
type S3Server struct {
	URL string
	Dir string // its buckets are the folders in it; a file put there is an object without an ETag

	AccessKey, SecretKey string
}

// StartS3 starts versitygw over an empty folder, with the buckets given, for the time of the test. A test is skipped
// where it is not built; with LARDER_REQUIRE_S3=1 it fails there.
func StartS3(t testing.TB, buckets ...string) *S3Server {
	t.Helper()
	binary := Tool(t, "versitygw", "LARDER_VERSITYGW", "LARDER_REQUIRE_S3")
	root := t.TempDir()
	s := &S3Server{Dir: filepath.Join(root, "data"), AccessKey: "tester", SecretKey: "a-secret-of-tests"}
	meta := filepath.Join(root, "meta") // not in extended attributes, which some file systems lack
	for _, dir := range append([]string{meta}, under(s.Dir, buckets)...) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // another process may take the port first
		addr := freePort(t)
		cmd := exec.Command(binary, "--port", addr, "--access", s.AccessKey, "--secret", s.SecretKey, "--quiet",
			"--keep-alive", "posix", "--sidecar", meta, s.Dir) //nolint:gosec // what this repository builds
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out := &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait() // its output says why
		}()
		s.URL = "http://" + addr
		if err := answers(s.URL, ended); err != nil {
			_ = cmd.Process.Kill() // it may have ended
			t.Logf("versitygw: %v\n%s", err, out)
			continue
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have ended
			<-ended
		})
		return s
	}
	t.Fatal("versitygw does not start")
	return nil
}

func under(dir string, names []string) []string {
	out := []string{dir}
	for _, n := range names {
		out = append(out, filepath.Join(dir, n))
	}
	return out
}

// Tool finds a program that make setup-nightly puts into bin/tools of this tree: there, where the variable named says,
// or in the path. A test is skipped where it is not; with the variable required it fails there.
func Tool(t testing.TB, program, named, required string) string {
	t.Helper()
	if path := os.Getenv(named); path != "" {
		return path
	}
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		if binary := filepath.Join(dir, "bin", "tools", program); exec.Command(binary, "--version").Run() == nil {
			return binary
		}
		break
	}
	if found, err := exec.LookPath(filepath.Base(program)); err == nil {
		return found
	}
	message := "no " + filepath.Base(program) + ": make setup-nightly puts it into bin/tools; " + named + " names another"
	if os.Getenv(required) != "" {
		t.Fatal(message)
	}
	t.Skip(message)
	return ""
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// answers waits until a server speaks HTTP.
func answers(url string, ended <-chan struct{}) error {
	err := errors.New("it did not answer")
	poll(func() bool {
		select {
		case <-ended:
			err = errors.New("it ended")
			return true
		default:
		}
		res, failed := http.Get(url) //nolint:gosec,noctx // of this test
		if failed != nil {
			return false
		}
		res.Body.Close()
		err = nil
		return true
	})
	return err
}
