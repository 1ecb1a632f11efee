package testenv_test

import (
	"testing"

	"larder/internal/testenv"
)

func waitHere(c chan int) { <-c }

func spinHere(begun, c chan int) {
	close(begun)
	for len(c) == 0 {
	}
}

func TestParked(t *testing.T) {
	c, begun := make(chan int, 3), make(chan int)
	go waitHere(c)
	testenv.Eventually(t, "a goroutine waits", func() bool {
		waiting, all := testenv.Parked("testenv_test.waitHere")
		return waiting == 1 && all == 1
	})
	go spinHere(begun, c)
	<-begun
	for range 5 {
		if waiting, all := testenv.Parked("testenv_test.spinHere"); waiting != 0 || all != 1 {
			t.Errorf("%d of %d goroutines wait, one runs", waiting, all)
		}
	}
	c <- 1
	c <- 1
	testenv.Eventually(t, "both end", func() bool {
		_, a := testenv.Parked("testenv_test.waitHere")
		_, b := testenv.Parked("testenv_test.spinHere")
		return a+b == 0
	})
}
