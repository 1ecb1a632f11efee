package errs

import "strings"

// NotYAML is the error of text that the YAML library cannot read, with file:line first as in every other message about
// a file, and tabs as the cause where there are any. name is of the file, data its text, err what the library said.
func NotYAML(reason Reason, name string, data []byte, err error) *Error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	where, hint := name, "check indentation and quotes"
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if line, what, ok := strings.Cut(rest, ": "); ok {
			where, text = name+":"+line, what
		}
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "\t") {
			hint = "indent with blanks: YAML takes no tabs"
			break
		}
	}
	return New(reason, name, hint, "%s: %s", where, text)
}
