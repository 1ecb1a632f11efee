package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// maxDepth of nested messages; a recipe needs about ten.
const maxDepth = 200

// Marshal writes the protobuf JSON form. Fields at their default are left out.
func Marshal(m proto.Message) ([]byte, error) {
	b, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return b, nil
}

// UnmarshalStrict reads the protobuf JSON form and refuses unknown fields: the daemon's way, a misspelt field must not
// be dropped in silence. The error is an INVALID_ARGUMENT.
func UnmarshalStrict(b []byte, m proto.Message) error {
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(b, m); err != nil {
		name := string(m.ProtoReflect().Descriptor().Name())
		return errs.New(errs.Invalid, name, "proto/larder/v1/larder.proto lists the fields and their types",
			"the JSON is no %s", name).Because(err)
	}
	return nil
}

// Unmarshal reads the protobuf JSON form and ignores unknown fields: the client's way, so that a newer daemon can say
// more. The error is a PROTOCOL.
func Unmarshal(b []byte, m proto.Message) error {
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth, DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		v := Violation("the daemon's answer is no %s", m.ProtoReflect().Descriptor().Name())
		v.Err = err
		return v
	}
	return nil
}

// envelope is the payload of CALL.
type envelope struct {
	Method string          `json:"method"`
	Body   json.RawMessage `json:"body,omitempty"`
}

// MarshalCall writes the payload of CALL.
func MarshalCall(method string, body proto.Message) ([]byte, error) {
	b, err := Marshal(body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{method, b})
}

// ParseCall reads the payload of CALL. A missing body is an empty message. The error is a PROTOCOL.
func ParseCall(p []byte) (method string, body []byte, err error) {
	var e envelope
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		v := Violation(`a CALL holds {"method": …, "body": {…}}`)
		v.Err = err
		return "", nil, v
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", nil, Violation("something follows the JSON of a CALL")
	}
	if e.Method == "" {
		return "", nil, Violation("a CALL names a method")
	}
	if len(e.Body) == 0 {
		e.Body = []byte("{}")
	}
	return e.Method, e.Body, nil
}

// Detail is the form of an error in ERROR, GONE and DRAIN. Any error can be given; one without a *errs.Error in its
// chain becomes INTERNAL.
func Detail(err error) *larderv1.ErrorDetail {
	f := errs.From(err)
	if f == nil {
		return &larderv1.ErrorDetail{}
	}
	d := &larderv1.ErrorDetail{Reason: string(f.Reason), Subject: f.Subject, Message: f.Message, Hint: f.Hint}
	if f.Err != nil {
		d.Message += ": " + f.Err.Error()
	}
	if f.RetryAfter > 0 {
		d.RetryAfter = durationpb.New(f.RetryAfter)
	}
	return d
}

// Fault is Detail backwards.
func Fault(d *larderv1.ErrorDetail) *errs.Error {
	f := &errs.Error{Reason: errs.Reason(d.GetReason()), Subject: d.GetSubject(), Message: d.GetMessage(),
		Hint: d.GetHint()}
	if f.Reason == "" {
		f.Reason = errs.Internal
	}
	if d.GetRetryAfter() != nil {
		f.RetryAfter = d.GetRetryAfter().AsDuration()
	}
	return f
}

// MarshalError writes the payload of ERROR, GONE and DRAIN. Text that is no UTF-8 (a file name, say) is made so.
func MarshalError(err error) []byte {
	d := Detail(err)
	for _, s := range []*string{&d.Reason, &d.Subject, &d.Message, &d.Hint} {
		*s = string(bytes.ToValidUTF8([]byte(*s), []byte("\uFFFD")))
		if len(*s) > maxOpening {
			*s = (*s)[:maxOpening]
			*s = string(bytes.ToValidUTF8([]byte(*s), nil)) + "…"
		}
	}
	b, merr := Marshal(d)
	if merr != nil { // strings are valid and the duration is one: cannot happen, but an error must always get out
		return []byte(`{"reason":"INTERNAL","message":"the error could not be written"}`)
	}
	return b
}

// ParseError reads the payload of ERROR, GONE and DRAIN.
func ParseError(p []byte) *errs.Error {
	var d larderv1.ErrorDetail
	if err := Unmarshal(p, &d); err != nil {
		return errs.From(err)
	}
	return Fault(&d)
}

// DefaultSocket is LARDER_SOCKET, else $XDG_RUNTIME_DIR/larder/larder.sock, else /tmp/larder-UID/larder.sock. A folder
// of XDG_RUNTIME_DIR that is gone, as that of a user who logged out, or that this user may not write counts as none.
func DefaultSocket() string {
	if s := os.Getenv("LARDER_SOCKET"); s != "" {
		return s
	}
	return UserSocket()
}

// ours reports whether this user may make files in a folder.
func ours(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir() && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
}

// UserSocket is DefaultSocket where LARDER_SOCKET is not set.
func UserSocket() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && ours(dir) {
		return filepath.Join(dir, "larder", "larder.sock")
	}
	return "/tmp/larder-" + strconv.Itoa(os.Getuid()) + "/larder.sock"
}
