# A harness for tests of `serve`: it is told of sessions, and calls for each turn. In a session the model has two turns, with the
# number of tokens of the first as a tool's answer between them; a tenth of each turn's tokens is the reward.
# usage: harness.pl [WAY]; the ids that it got go to the file that SAMPLED names, a line a call.
use strict;
use IO::Socket::INET;
$| = 1;
$SIG{PIPE} = "IGNORE";
my $way = $ARGV[0] || "tokens";
my ($url, $host, $port, $path, $token, $sampled);
if ($ENV{SAMPLED}) { open($sampled, ">>", $ENV{SAMPLED}) or die; $sampled->autoflush }
while (my $line = <STDIN>) {
    next if $line =~ /"type":"end"/;
    my ($id) = $line =~ /"id":(\d+)/;
    my ($prompt) = $line =~ /"prompt_token_ids":\[([^]]*)\]/;
    my ($question) = $line =~ /"question":"([^"]*)"/;
    ($url) = $line =~ /"url":"([^"]*)"/;
    ($token) = $line =~ /"token":"([^"]*)"/;
    ($host, $port, $path) = $url =~ m{^http://([^:/]+):(\d+)(/.*)/v1$} or die "no url: $line";
    once("died") && exit 3 if $way eq "die";
    if ($way eq "hang" && $id % 2) { sleep 1 while 1 }
    my $n = $way =~ /^(chat|prefix|whole|stream)$/ ? chat($question) : tokens($prompt);
    print qq({"id": 99999999999}\n) if $way eq "lie" && $id % 2;
    printf qq({"id": %d, "reward": %g, "metrics": {"calls": 1}}\n), $id, $n / 10;
}

sub tokens { # the same conversation, by ids
    my @context = split /,/, shift;
    my ($n, $turn) = (0, 0);
    for $turn (0, 1) {
        select(undef, undef, undef, rand() / 50) if $way eq "slow";
        kill_wire() if $way eq "killed" && $turn;
        lies($turn, @context) if $way eq "faults";
        my $reply = ask("/inference/v1/generate", ids(@context));
        my @said = said($reply);
        if ($way eq "again") { ask("/inference/v1/generate", ids(@context)) eq $reply or die "another answer to the same call" }
        $n += @said;
        push @context, @said;
        next if $turn;
        my ($more) = ask("/tokenize", sprintf '{"prompt":"+%d="}', scalar @said) =~ /"tokens":\[([^]]*)\]/;
        push @context, split /,/, $more;
    }
    return $n;
}

sub ids {
    return '{"model":"actor","token_ids":[' . join(",", @_) . '],"sampling_params":{"logprobs":1,"temperature":1.0}}';
}

sub said {
    my $reply = shift;
    my ($ids) = $reply =~ /"token_ids":\[([0-9,]*)\]/ or die "no ids: $reply";
    my @told = $reply =~ /"token":"token_id:(\d+)","logprob":-?[0-9]/g;
    $ids eq join(",", @told) or die "ids are told in two ways: $reply";
    print $sampled "$ids\n" if $sampled;
    return split /,/, $ids;
}

sub chat { # by messages; `prefix`: with the ids so far beside them; `whole`: with all ids of the context; `stream`: told in chunks
    my @messages = (sprintf '{"role":"user","content":"%s"}', shift);
    my ($n, $so_far) = (0, "");
    for my $turn (0, 1) {
        my $at = "/v1/chat/completions" . ($way eq "whole" && $turn ? "/tokens" : "");
        my $stream = $way eq "stream" ? '"stream":true,"stream_options":{"include_usage":true},' : "";
        my $reply = ask($at, '{"model":"actor",' . $stream . '"messages":[' . join(",", @messages) . "]$so_far,"
            . '"tools":[{"type":"function","function":{"name":"count"}}],'
            . '"logprobs":true,"return_tokens_as_token_ids":true,"return_token_ids":true}');
        my @said = said($reply);
        my ($context) = $reply =~ /"prompt_token_ids":\[([0-9,]*)\]/;
        my ($message) = $reply =~ /"message":(\{.*?\}),"finish_reason"/;
        $message = streamed($reply, scalar @said) if $stream;
        $n += @said;
        $message = '{"role":"assistant","content":"(shortened)"}' if $way eq "prefix";
        $so_far = ",\"required_prefix_token_ids\":[$context," . join(",", @said) . "]" if $way eq "prefix";
        my ($more) = ask("/tokenize", '{"prompt":"tool:"}') =~ /"tokens":\[([^]]*)\]/;
        $so_far = ",\"tokens\":[$context," . join(",", @said) . ",$more]" if $way eq "whole";
        push @messages, $message, sprintf '{"role":"tool","tool_call_id":"0","content":[{"type":"text","text":"%d"}]}', scalar @said;
    }
    return $n;
}

sub streamed { # the message of an answer in chunks: what was said, why it ended, and how many tokens it was
    my ($reply, $n) = @_;
    $reply =~ s/\s*data: \[DONE\]\s*$// or die "no end: $reply";
    my ($said, $end, $usage, @more) = map { /^data: (\{"object":"chat.completion.chunk",.*\})$/ ? $1 : die "no event: $_" } split /\n\n/, $reply;
    my ($message) = $said =~ /"finish_reason":null,.*"delta":(\{"role":"assistant".*?\})\}\]/ or die "no message: $said";
    $end =~ /"delta":\{\},"finish_reason":"(stop|length|tool_calls)"/ or die "no reason: $end";
    $usage =~ /"choices":\[\],.*"completion_tokens":$n,/ && !@more or die "no usage: $usage @more";
    return $message;
}

sub lies { # all of these are refused by name, and change nothing
    my ($turn, @context) = @_;
    my ($first, @rest) = @context;
    my $post = sub { my ($what, $status, @call) = @_; my ($got, $body) = http(@call); wrong($what, $got, $body) if $got != $status };
    $post->("a wrong token", 401, "/inference/v1/generate", ids(@context), token => "wrong");
    $post->("no token", 401, "/inference/v1/generate", ids(@context), token => "");
    $post->("another model", 400, "/v1/chat/completions", '{"model":"other","messages":[{"role":"user","content":"1"}]}');
    $post->("a stream of ids", 400, "/inference/v1/generate", '{"token_ids":[5],"stream":true}');
    $post->("options of a stream", 400, "/v1/chat/completions", '{"stream":true,"stream_options":{"include":1},"messages":[{"role":"user","content":"1"}]}');
    $post->("a temperature", 400, "/inference/v1/generate", '{"token_ids":[5],"sampling_params":{"temperature":0.5}}');
    $post->("a seed", 400, "/inference/v1/generate", '{"token_ids":[5],"sampling_params":{"seed":1}}');
    $post->("too many tokens", 400, "/inference/v1/generate", '{"token_ids":[5],"sampling_params":{"max_tokens":5}}');
    $post->("a stop id", 400, "/inference/v1/generate", '{"token_ids":[5],"sampling_params":{"stop_token_ids":[7]}}');
    $post->("a file", 400, "/inference/v1/generate", '{"token_ids":[5],"file":"/etc/passwd"}');
    $post->("no id", 400, "/inference/v1/generate", '{"token_ids":[-1]}');
    $post->("a huge id", 400, "/inference/v1/generate", '{"token_ids":[99999999999]}');
    $post->("no JSON", 400, "/inference/v1/generate", '{"token_ids":[5');
    $post->("a key twice", 400, "/inference/v1/generate", '{"token_ids":[5],"token_ids":[6]}');
    $post->("too long a context", 400, "/inference/v1/generate", ids((5) x 100));
    $post->("another path", 404, "/v1/embeddings", '{}');
    $post->("10 MB", 413, "/inference/v1/generate", " " x 10000000);
    $post->("another session", 404, "/inference/v1/generate", ids(@context), path => "/session/77");
    $post->("no session", 404, "/inference/v1/generate", ids(@context), path => "");
    $post->("another method", 405, "/v1/models", "", method => "DELETE");
    if ($turn) { # what was sampled is not theirs to change
        $post->("another first id", 400, "/inference/v1/generate", ids($first == 5 ? 6 : 5, @rest));
        $post->("fewer ids", 400, "/inference/v1/generate", ids($first, $rest[0]));
    }
    my ($status, $body) = http("/v1/models", "", method => "GET");
    wrong("models", $status, $body) unless $status == 200 && $body =~ /"id":"actor".*"max_model_len":32/;
}

sub wrong {
    my ($what, $status, $body) = @_;
    open(my $f, ">>", "wrong");
    print $f "$what: $status $body\n";
}

# The wire of this run is killed, between two calls or in one of another process.
sub kill_wire {
    return unless once("died-wire");
    my %above;
    for (my $p = $$; $p > 1; $p = parent($p)) { $above{$p} = 1 }
    for my $pid (map { m{(\d+)} } glob "/proc/[0-9]*") {
        open(my $f, "<", "/proc/$pid/cmdline") or next;
        my $line = <$f> // "";
        kill 9, $pid if $line =~ m{^[^\0]*/graphrun-httpd\0} && $above{parent(parent($pid))};
    }
}

sub parent {
    my $pid = shift;
    open(my $f, "<", "/proc/$pid/stat") or return 0;
    my ($parent) = <$f> =~ /\) \S (\d+)/;
    return $parent;
}

sub once {
    my $file = shift;
    return 0 if -e $file;
    open(my $f, ">", $file) or die;
    return 1;
}

sub ask {
    my ($at, $body) = @_;
    for (1 .. 100) {
        my ($status, $reply) = http($at, $body);
        return $reply if $status == 200;
        die "$at: $status $reply" if $status;
        select(undef, undef, undef, 0.05); # the connection broke: once more
    }
    die "$at: no answer";
}

sub http {
    my ($at, $body, %how) = @_;
    my $method = $how{method} || "POST";
    my $bearer = exists $how{token} ? $how{token} : $token;
    my $to = exists $how{path} ? $how{path} : $way eq "again" ? "" : $path;
    my ($session) = $path =~ m{(\d+)$};
    my $s = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port) or return (0, "cannot connect: $!");
    print $s "$method $to$at HTTP/1.1\r\nHost: $host\r\nConnection: close\r\n", $bearer ? "Authorization: Bearer $bearer\r\n" : "",
        $way eq "again" ? "X-Session-ID: $session\r\n" : "",
        "Content-Length: ", length $body, "\r\n\r\n";
    if (length $body < 1000000) { print $s $body } # else the answer comes before it
    local $/;
    my $reply = <$s> // "";
    my ($status, $rest) = $reply =~ m{^HTTP/1.1 (\d+)[^\n]*\n.*?\r\n\r\n(.*)$}s or return (0, "no answer");
    return ($status, $rest);
}
