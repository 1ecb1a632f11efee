package gpu

import "testing"

func TestNone(t *testing.T) {
	p := None("because")
	if got, err := p.Devices(t.Context()); len(got) != 0 || err != nil || p.Status() != "because" || p.Close() != nil {
		t.Errorf("%v, %v, %q", got, err, p.Status())
	}
}
