package v1

import "testing"

func TestWhatAContainerSaidLastIsNotForClients(t *testing.T) {
	for message, want := range map[string]string{
		"": "",
		"Container failed with: panic: password=hunter2":                                                                                         "",
		`Container failed with: container "user" ended with exit code 1 and said nothing`:                                                        `Container failed with: container "user" ended with exit code 1 and said nothing`,
		`Container failed with: container "db" is away, password=hunter2`:                                                                        "",
		`Container failed with: ContainerCannotRun (container "user", exit code 127)`:                                                            `Container failed with: ContainerCannotRun (container "user", exit code 127)`,
		"Container failed with: one line\ncontainer \"user\" ended with exit code 1 and said nothing":                                            "",
		`Container failed with: OOMKilled (container "u", exit code 137): it took more memory than its limit.`:                                   `Container failed with: OOMKilled (container "u", exit code 137): it took more memory than its limit.`,
		`Container failed with: OOMKilled (container "u", exit code 137): it took more memory x. Its last words: password`:                       `Container failed with: OOMKilled (container "u", exit code 137): it took more memory x`,
		`Container failed with: container "u" was ended with exit code 137, because its startup probe failed. Mend it. Its last words: password`: `Container failed with: container "u" was ended with exit code 137, because its startup probe failed. Mend it`,
	} {
		if got := WithoutLastWords(message); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}
