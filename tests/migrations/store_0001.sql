BEGIN TRANSACTION;
CREATE TABLE fits (
	profile_key VARCHAR(16) NOT NULL, 
	estimator TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	fitted_at_s DOUBLE NOT NULL, 
	observation_count INTEGER NOT NULL, 
	PRIMARY KEY (profile_key, estimator), 
	FOREIGN KEY(profile_key) REFERENCES profiles ("key") ON DELETE CASCADE
);
INSERT INTO "fits" VALUES('7185cd47eee07aaf','flops','{"sha256":"f87ace7b2ce2f1d782c88f38b1f39dd75bb011e9ce5524042d05026de8e7edd9","fit":{"slope":1}}',1700000000.0,2);
CREATE TABLE joulecast_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT joulecast_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "joulecast_version" VALUES('0001');
CREATE TABLE observations (
	id INTEGER NOT NULL, 
	profile_key VARCHAR(16) NOT NULL, 
	trial_key VARCHAR(16) NOT NULL, 
	digest VARCHAR(16) NOT NULL, 
	run TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	taken_at_s DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (profile_key, trial_key, digest), 
	FOREIGN KEY(profile_key) REFERENCES profiles ("key") ON DELETE CASCADE
);
INSERT INTO "observations" VALUES(1,'7185cd47eee07aaf','b7531e1c61a4f2e4','18c34a49837c09a3','run 1','{"trial":{"network":{"layers":[{"kind":"conv2d","sizes":{"bias":1,"cin":1,"cout":6,"dilation":[1,1],"groups":1,"kernel":[5,5],"padding":[2,2],"space":[28,28],"stride":[1,1]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}},{"kind":"pool","sizes":{"ceil":0,"fn":"max","kernel":[2,2],"padding":[0,0],"stride":[2,2]}}],"input_grad":false,"name":"conv1"},{"kind":"conv2d","sizes":{"bias":1,"cin":6,"cout":16,"dilation":[1,1],"groups":1,"kernel":[5,5],"padding":[0,0],"space":[14,14],"stride":[1,1]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}},{"kind":"pool","sizes":{"ceil":0,"fn":"max","kernel":[2,2],"padding":[0,0],"stride":[2,2]}},{"kind":"flatten","sizes":{}}],"name":"conv2"},{"kind":"linear","sizes":{"bias":1,"cin":400,"cout":120,"lead":[]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}}],"name":"fc1"},{"kind":"linear","sizes":{"bias":1,"cin":120,"cout":84,"lead":[]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}}],"name":"fc2"},{"kind":"linear","sizes":{"bias":1,"cin":84,"cout":10,"lead":[]},"name":"fc3"}],"input":{"shape":[1,28,28],"vocabulary":0},"groups":[],"buildable":true,"name":"lenet5:6,16,120,84","totals":null},"setup":{"batch":1,"phase":"train","precision":"fp32","optimizer":"sgd","loss":"cross_entropy","threads":0,"cudnn_benchmark":false},"how":{"stage":"step","mode":"eager","copies":1,"upstream":"loss","steps":10}},"energy_j":0.3333333333333333,"energy_sd_j":null,"duration_s":0.1,"duration_sd_s":null,"issue_s":null,"issue_sd_s":null,"count":1,"peak_memory_bytes":null,"run":"run 1","device":{"name":"board","processor":"","memory_bytes":0,"driver":"","power_mode":"10 W"},"runtime":"torch-2.13.0","meter":"rapl","covers":"cpu","provenance":"measured","source":"","taken_at_s":1700000000.0,"cost_s":0.0}',1700000000.0);
INSERT INTO "observations" VALUES(2,'7185cd47eee07aaf','bdf6d86eed1eb6b5','b6beec1db240c49c','run 1','{"trial":{"network":{"layers":[{"kind":"conv2d","sizes":{"bias":1,"cin":1,"cout":6,"dilation":[1,1],"groups":1,"kernel":[5,5],"padding":[2,2],"space":[28,28],"stride":[1,1]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}},{"kind":"pool","sizes":{"ceil":0,"fn":"max","kernel":[2,2],"padding":[0,0],"stride":[2,2]}}],"input_grad":false,"name":"conv1"},{"kind":"conv2d","sizes":{"bias":1,"cin":6,"cout":16,"dilation":[1,1],"groups":1,"kernel":[5,5],"padding":[0,0],"space":[14,14],"stride":[1,1]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}},{"kind":"pool","sizes":{"ceil":0,"fn":"max","kernel":[2,2],"padding":[0,0],"stride":[2,2]}},{"kind":"flatten","sizes":{}}],"name":"conv2"},{"kind":"linear","sizes":{"bias":1,"cin":400,"cout":120,"lead":[]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}}],"name":"fc1"},{"kind":"linear","sizes":{"bias":1,"cin":120,"cout":84,"lead":[]},"tail":[{"kind":"elementwise","sizes":{"axes":[],"fn":"relu","inputs":1,"params":0,"passes":1}}],"name":"fc2"},{"kind":"linear","sizes":{"bias":1,"cin":84,"cout":10,"lead":[]},"name":"fc3"}],"input":{"shape":[1,28,28],"vocabulary":0},"groups":[],"buildable":true,"name":"lenet5:6,16,120,84","totals":null},"setup":{"batch":2,"phase":"train","precision":"fp32","optimizer":"sgd","loss":"cross_entropy","threads":0,"cudnn_benchmark":false},"how":{"stage":"step","mode":"eager","copies":1,"upstream":"loss","steps":10}},"energy_j":0.25,"energy_sd_j":null,"duration_s":0.2,"duration_sd_s":null,"issue_s":null,"issue_sd_s":null,"count":1,"peak_memory_bytes":null,"run":"run 1","device":{"name":"board","processor":"","memory_bytes":0,"driver":"","power_mode":"10 W"},"runtime":"torch-2.13.0","meter":"rapl","covers":"cpu","provenance":"measured","source":"","taken_at_s":1700000001.0,"cost_s":0.0}',1700000001.0);
CREATE TABLE profiles (
	"key" VARCHAR(16) NOT NULL, 
	device_name TEXT NOT NULL, 
	power_mode TEXT NOT NULL, 
	device TEXT NOT NULL, 
	runtime TEXT NOT NULL, 
	covers TEXT NOT NULL, 
	provenance TEXT NOT NULL, 
	created_at_s DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "profiles" VALUES('7185cd47eee07aaf','board','10 W','{"name":"board","processor":"","memory_bytes":0,"driver":"","power_mode":"10 W"}','torch-2.13.0','cpu','measured',1700000000.0);
COMMIT;
