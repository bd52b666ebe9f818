package contract

import (
	"testing"

	"ebb.dev/ebb/test/apiservertest"
)

func TestContractOfTheServerInMemory(t *testing.T) {
	_, config := apiservertest.Start(t)
	Run(t, config, true)
}
