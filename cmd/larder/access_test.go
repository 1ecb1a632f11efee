package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// as N UID GROUP CMD ARGS...: code of another user, of a group of its own number and of GROUP. Files that it needs
// belong into $S.
func cmdAs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: as CODE UID GROUP CMD ARGS...")
	}
	uid, err := strconv.ParseUint(args[1], 10, 32)
	ts.Check(err)
	group, err := strconv.ParseUint(args[2], 10, 32)
	ts.Check(err)
	// Folders of tests are closed to others: the binary goes where they can run it.
	bin := filepath.Join(ts.Getenv("S"), "bin")
	path := filepath.Join(bin, args[3])
	if _, err := os.Stat(path); err != nil {
		self, err := os.Executable()
		ts.Check(err)
		ts.Check(os.MkdirAll(bin, 0o755))
		ts.Check(os.Chmod(bin, 0o755))
		// By another process: while this one had it open for writing, what it forks elsewhere would have it too, and a
		// file that is open for writing cannot be run.
		ts.Check(exec.Command("cp", self, path).Run())
		ts.Check(os.Chmod(path, 0o755))
	}
	c := exec.Command(path, args[4:]...)
	c.Dir = ts.Getenv("S")
	c.Env = []string{"LARDER_SOCKET=" + ts.Getenv("LARDER_SOCKET"), "PATH=" + bin}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid),
		Groups: []uint32{uint32(group)}}}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil && c.ProcessState == nil {
		ts.Fatalf("%v: %v", args, err)
	}
	ts.Logf("[uid %d]\n%s%s", uid, out.String(), errs.String())
	ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("err"), errs.Bytes(), 0o600))
	if got := strconv.Itoa(c.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("%v: exit code %s, want %s", args[3:], got, args[0])
	}
}

// certs DIR: makes the authorities ca and other-ca, and certificates server and client of ca, stranger of other-ca.
func cmdCerts(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	write := func(name, kind string, der []byte) {
		ts.Check(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	serial := int64(0)
	issue := func(name string, by *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		ts.Check(err)
		serial++
		c := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
			NotAfter:    time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
				x509.ExtKeyUsageClientAuth},
			KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		}
		if by == nil {
			by, key = c, own
			c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by, &own.PublicKey, key)
		ts.Check(err)
		write(name+".pem", "CERTIFICATE", der)
		k, err := x509.MarshalECPrivateKey(own)
		ts.Check(err)
		write(name+".key", "EC PRIVATE KEY", k)
		return c, own
	}
	ca, caKey := issue("ca", nil, nil)
	other, otherKey := issue("other-ca", nil, nil)
	issue("server", ca, caKey)
	issue("client", ca, caKey)
	issue("stranger", other, otherKey)
}
